"""Ids → logits."""

from gpt2np.model.cache import KVCache
from gpt2np.model.config import GPT2Config
from gpt2np.model.gpt2 import GPT2
from gpt2np.model.step import Probe, last_rows

__all__ = ["GPT2", "GPT2Config", "KVCache", "Probe", "last_rows"]
