"""A model's name or path → the folder that holds its files.

    find      which folder: an existing one, the bundled one, the cache's, or one to be fetched
    names     `owner/name@revision` and the short names of OpenAI's models
    files     which files a model or a vocabulary is made of
    cache     what huggingface_hub has already fetched; costs no request
    fetch     the Hub → the cache
    weights   one large file of it, continued where the last attempt ended
    card      the licence that a model's README.md names
    failures  what went wrong, in a line that says what to do next

Where the cache lies, which endpoint is asked, tokens, proxies and offline mode are
huggingface_hub's business (HF_HOME, HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, HF_HUB_OFFLINE, …). It
reads them when it is imported, so it is imported only when needed.
"""

from gpt2np.hub.files import COMPANIONS, MODEL_FILES, VOCABULARY_FILES
from gpt2np.hub.find import ModelSource, find_model, find_vocabulary

__all__ = [
    "COMPANIONS",
    "MODEL_FILES",
    "VOCABULARY_FILES",
    "ModelSource",
    "find_model",
    "find_vocabulary",
]
