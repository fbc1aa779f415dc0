"""GPT-2: the mathematics of the forward pass, and the class that runs it."""

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.model.model import GPT2
from gpt2np.runtime.arguments import last_token_indices
from gpt2np.runtime.context import Hook
from gpt2np.runtime.kv_cache import KVCache

__all__ = ["GPT2", "GPT2Config", "Hook", "KVCache", "last_token_indices"]
