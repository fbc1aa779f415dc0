"""Find a model by name or path: return the folder with its files.

The cache's folder, endpoint, tokens, proxies and offline mode are configured by huggingface_hub's
variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, HF_HUB_OFFLINE, …). huggingface_hub reads
them when it is imported, and is imported only when needed.
"""

from gpt2np.hub.find import ModelSource, find_model, find_vocabulary
from gpt2np.hub.model_files import COMPANIONS, MODEL_FILES, VOCABULARY_FILES

__all__ = [
    "COMPANIONS",
    "MODEL_FILES",
    "VOCABULARY_FILES",
    "ModelSource",
    "find_model",
    "find_vocabulary",
]
