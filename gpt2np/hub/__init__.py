"""Finding the files of a model by name or path, and downloading them from the Hugging Face Hub.

huggingface_hub's environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY,
HF_HUB_OFFLINE, …) set the cache folder, endpoint, tokens, proxies and offline mode.
huggingface_hub reads the variables when it is imported. This package imports huggingface_hub only
when needed.
"""

from gpt2np.hub.find import ModelSource, bundled_folder, find_model, find_vocabulary
from gpt2np.hub.model_files import COMPANIONS, MODEL_FILES, VOCABULARY_FILES

__all__ = [
    "COMPANIONS",
    "MODEL_FILES",
    "VOCABULARY_FILES",
    "ModelSource",
    "bundled_folder",
    "find_model",
    "find_vocabulary",
]
