"""Search for a model's files by name or path, and downloads from the Hugging Face Hub.

Environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, HF_HUB_OFFLINE, …) set the cache
folder, endpoint, token, proxy and offline mode. Set them before huggingface_hub is imported.
"""

from gpt2np.hub.find import ModelSource, find_model, find_vocabulary

__all__ = ["ModelSource", "find_model", "find_vocabulary"]
