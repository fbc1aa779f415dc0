"""The keys and values of the tokens that a sequence has seen, so as to compute them only once."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.model.config import GPT2Config
from gpt2np.model.panels import padded

Array = NDArray[Any]

TILE = 64  # tokens


def cache_nbytes(config: GPT2Config, length: int, dtype: DTypeLike = np.float32) -> int:
    """Bytes of the keys and values of `length` tokens."""
    return 2 * config.n_layer * length * config.n_embd * np.dtype(dtype).itemsize


class KVCache:
    """One sequence's cache: arrays allocated ahead, and anew when full, that can be cut back.

    Keys are kept as columns in tiles of TILE tokens, as products with queries read them from one
    end to the other. D is rounded up to whole lanes.

    Attributes:
        length: the number of tokens whose keys and values are held, T.
    """

    def __init__(self, config: GPT2Config, dtype: DTypeLike = np.float32) -> None:
        self.length = 0
        self._limit = config.n_positions
        size = padded(config.n_embd // config.n_head)
        heads = config.n_layer, config.n_head
        self._keys: Array = np.zeros((*heads, 0, size, TILE), dtype)  # L, H, tiles, D, TILE
        self._values: Array = np.zeros((*heads, 0, size), dtype)  # L, H, T, D

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the keys and values."""
        return self._keys.dtype

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in all; if there is not enough, for twice as many.

        What is not used yet takes no memory, as the system gives a page when it is first written.
        """
        if length > self._values.shape[2]:
            tiles = -(-max(length, min(2 * length, self._limit)) // TILE)
            self._keys = _grown(self._keys, tiles, -(-self.length // TILE))
            self._values = _grown(self._values, tiles * TILE, self.length)

    def extend(self, layer: int, heads: slice, key: Array, value: Array) -> tuple[Array, Array]:
        """Put key and value (h, n, D) of n new tokens of some heads behind those held.

        There must be room for them. Both of all T tokens: (h, tiles, D, TILE) and (h, T, D). The
        new ones count only from the next `advance(n)` on, when every layer has put in its own.
        """
        keys, values = self._keys[layer, heads], self._values[layer, heads]
        start, stop = self.length, self.length + key.shape[1]
        values[:, start:stop] = value
        while start < stop:
            tile, at = divmod(start, TILE)
            n = min(TILE - at, stop - start)
            done = start - self.length
            keys[:, tile, :, at : at + n] = key[:, done : done + n].swapaxes(1, 2)
            start += n
        return keys[:, : -(-stop // TILE)], values[:, :stop]

    def advance(self, n: int) -> None:
        """Count the n tokens that `extend` has put in."""
        self.length += n

    def copy(self) -> KVCache:
        """Another cache of the same tokens, which grows on its own."""
        other, tiles = copy(self), -(-self.length // TILE)
        other._keys = self._keys[:, :, :tiles].copy()
        other._values = self._values[:, :, : tiles * TILE].copy()
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; InvalidArgumentError if there are fewer."""
        if not 0 <= length <= self.length:
            raise InvalidArgumentError(f"can't cut a cache of {self.length} tokens to {length}")
        self.length = length


def _grown(array: Array, length: int, used: int) -> Array:
    """A copy with `length` along axis 2, and zeros where nothing is yet.

    Zeros, because what is beyond a sequence's end is multiplied, too, before it is left out.
    """
    grown = np.zeros((*array.shape[:2], length, *array.shape[3:]), array.dtype)
    grown[:, :, :used] = array[:, :, :used]
    return grown
