"""Search for a model's files by name or path, and downloads from the Hugging Face Hub.

Environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, HF_HUB_OFFLINE, …) set the cache
folder, endpoint, token, proxy and offline mode. Set them before huggingface_hub is imported. gpt2np
imports huggingface_hub only when needed.
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
