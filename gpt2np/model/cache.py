"""The keys and values of the tokens that a sequence has seen, so as to compute them only once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.model.config import GPT2Config

Array = NDArray[Any]

_FIRST_CAPACITY = 64  # tokens


def cache_nbytes(config: GPT2Config, length: int, dtype: DTypeLike = np.float32) -> int:
    """Bytes of the keys and values of `length` tokens."""
    return 2 * config.n_layer * length * config.n_embd * np.dtype(dtype).itemsize


class KVCache:
    """One sequence's cache: arrays allocated ahead, doubled when full, that can be cut back.

    Attributes:
        length: the number of tokens whose keys and values are held, T.
    """

    def __init__(self, config: GPT2Config, dtype: DTypeLike = np.float32) -> None:
        self.length = 0
        self._limit = config.n_positions
        size = config.n_embd // config.n_head
        self._data: Array = np.empty(
            (config.n_layer, 2, config.n_head, 0, size), dtype
        )  # L, 2, H, T, D

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in all, at least doubling what there was."""
        *front, capacity, size = self._data.shape
        if length > capacity:
            capacity = min(max(length, 2 * capacity, _FIRST_CAPACITY), max(length, self._limit))
            grown = np.empty((*front, capacity, size), self._data.dtype)
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data = grown

    def extend(self, layer: int, key: Array, value: Array) -> tuple[Array, Array]:
        """Put key and value (H, n, D) of n new tokens behind those held; both of all, (H, T, D).

        The new ones count only from the next `advance(n)` on, when every layer has put in its own.
        """
        stop = self.length + key.shape[1]
        self.reserve(stop)
        keys, values = self._data[layer]
        keys[:, self.length : stop] = key
        values[:, self.length : stop] = value
        return keys[:, :stop], values[:, :stop]

    def advance(self, n: int) -> None:
        """Count the n tokens that `extend` has put in."""
        self.length += n

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; InvalidArgumentError if there are fewer."""
        if not 0 <= length <= self.length:
            raise InvalidArgumentError(f"can't cut a cache of {self.length} tokens to {length}")
        self.length = length
