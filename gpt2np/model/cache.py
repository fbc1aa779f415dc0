"""The keys and values of the tokens that sequences have seen, so as to compute them only once.

Shape letters: S sequences, L layers, H heads, h some of them, D head size (rounded up to whole
lanes), N packed new tokens, n of them, T tokens seen, in tiles of TILE.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

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
    """One sequence's keys and values, which can be cut back.

    They are in a slot of a `Store`, side by side with those of the sequences that it is computed
    with, so that one product serves all. `make_room` gives it one.

    Attributes:
        length: the number of tokens whose keys and values are held, T.
        place: the store, and which of its slots.
    """

    def __init__(self, config: GPT2Config, dtype: DTypeLike = np.float32) -> None:
        self.length = 0
        self.place = Store(config, dtype, slots=1, tiles=0), 0

    @property
    def store(self) -> Store:
        """Where the keys and values are."""
        return self.place[0]

    @property
    def slot(self) -> int:
        """Which of the store's slots is this sequence's."""
        return self.place[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the keys and values."""
        return self.store.keys.dtype

    def held(self, layer: int, heads: slice, seen: int, count: int = 1) -> tuple[Array, Array]:
        """The tiles up to `seen` tokens of this sequence and of those in the slots behind it.

        Of some heads: keys (tiles, count, h, D, TILE), values (tiles, count, h, TILE, D).
        """
        some = slice(_tiles(seen)), slice(self.slot, self.slot + count), layer, heads
        return self.store.keys[some], self.store.values[some]

    def lies_behind(self, other: KVCache) -> bool:
        """Whether its slot is the one that follows the other's."""
        return self.store is other.store and self.slot == other.slot + 1

    def advance(self, n: int) -> None:
        """Count n tokens that every layer has put in the store."""
        self.length += n

    def copy(self) -> KVCache:
        """Another cache of the same tokens, which grows on its own."""
        other = copy(self)
        if not self.store.admit([other]):
            self.store.another(slots=1, tiles=_tiles(self.length)).admit([other])
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; InvalidArgumentError if there are fewer."""
        if not 0 <= length <= self.length:
            raise InvalidArgumentError(f"can't cut a cache of {self.length} tokens to {length}")
        self.length = length
        self.store.clear(self.slot, length)


class Store:
    """Room for the keys and values of several sequences; the system gives memory as it is used.

    Keys are columns, as products with queries read them from one end to the other.

    Attributes:
        keys: (tiles, S, L, H, D, TILE).
        values: (tiles, S, L, H, TILE, D). Beyond a sequence's end they are 0, not left from another
            one, as they are multiplied by 0 where a neighbour is longer.
        limit: the most tokens that a sequence can have.
    """

    def __init__(self, config: GPT2Config, dtype: DTypeLike, slots: int, tiles: int) -> None:
        size = padded(config.n_embd // config.n_head)
        each = tiles, slots, config.n_layer, config.n_head
        self.keys: Array = np.zeros((*each, size, TILE), dtype)
        self.values: Array = np.zeros((*each, TILE, size), dtype)
        self.limit = config.n_positions
        self._config = config
        self._reach = [0] * slots  # how many tokens may have values other than 0
        self._owners: WeakValueDictionary[int, KVCache] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """How many tokens each sequence may have here."""
        return len(self.keys) * TILE

    def another(self, slots: int, tiles: int) -> Store:
        """An empty store for the same model."""
        return Store(self._config, self.keys.dtype, slots, tiles)

    def admit(self, caches: Sequence[KVCache], length: int = 0) -> bool:
        """Move caches here, each to a slot that no other has, with room for `length` tokens.

        If there are too few free ones, or with less room, nothing is done, and the answer is False.
        """
        with self._lock:
            free = [slot for slot in range(len(self._reach)) if slot not in self._owners]
            if len(free) < len(caches) or self.room < length:
                return False
            for slot, cache in zip(free, caches, strict=False):
                self._copy(cache, slot)
                self._owners[slot] = cache
                before, cache.place = cache.place, (self, slot)  # at once, for Ctrl-C's sake
                before[0].leave(before[1], cache)
            return True

    def _copy(self, cache: KVCache, slot: int) -> None:
        tiles = _tiles(cache.length)
        self.keys[:tiles, slot] = cache.store.keys[:tiles, cache.slot]
        self.clear(slot, 0)
        self.values[:tiles, slot] = cache.store.values[:tiles, cache.slot]
        self.expect(slot, cache.length)

    def leave(self, slot: int, cache: KVCache) -> None:
        """Let others have a slot, if it is this cache's."""
        if self._owners.get(slot) is cache:
            del self._owners[slot]

    def expect(self, slot: int, length: int) -> None:
        """So many tokens are going to be put in a slot."""
        self._reach[slot] = max(self._reach[slot], length)

    def clear(self, slot: int, length: int) -> None:
        """Make the values beyond so many tokens 0."""
        tile, at = divmod(length, TILE)
        if self._reach[slot] > length:
            self.values[tile, slot, :, :, at:] = 0
            self.values[tile + 1 : _tiles(self._reach[slot]), slot] = 0
            self._reach[slot] = length


@dataclass(frozen=True)
class Places:
    """Where a store keeps new tokens.

    Attributes:
        store: for keys and values.
        tokens: which of the packed ones they are.
        tile, slot, at: of each, (n,).
    """

    store: Store
    tokens: slice
    tile: NDArray[np.int64]
    slot: NDArray[np.int64]
    at: NDArray[np.int64]

    def put(self, layer: int, heads: slice, keys: Array, values: Array) -> None:
        """Keep the packed tokens' keys and values (h, N, D) of some heads, as far as they are here.

        They count only from `KVCache.advance` on, when every layer has put in its own.
        """
        some = self.tile, self.slot, layer, heads
        self.store.keys[(*some, slice(None), self.at)] = keys[:, self.tokens].swapaxes(0, 1)
        self.store.values[(*some, self.at)] = values[:, self.tokens].swapaxes(0, 1)


def places(caches: Sequence[KVCache], tokens: Sequence[slice]) -> list[Places]:
    """The places of new tokens, which are those of each cache's sequence among the packed ones."""
    runs: list[list[tuple[KVCache, slice]]] = []
    for cache, some in zip(caches, tokens, strict=True):
        if not runs or runs[-1][-1][0].store is not cache.store:
            runs.append([])
        runs[-1].append((cache, some))
    return [_places(run) for run in runs]


def _places(run: Sequence[tuple[KVCache, slice]]) -> Places:
    counts = [tokens.stop - tokens.start for _, tokens in run]
    starts = [cache.length for cache, _ in run]
    seen = [np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]
    tile, at = np.divmod(np.concatenate(seen), TILE)
    slot = np.repeat([cache.slot for cache, _ in run], counts)
    return Places(run[0][0].store, slice(run[0][1].start, run[-1][1].stop), tile, slot, at)


def make_room(caches: Sequence[KVCache], counts: Sequence[int]) -> None:
    """Let each cache have room for so many more tokens.

    Those that have none move to the store of the others, if there are free slots. Else all move to
    a new one with room for twice as many tokens, and lie side by side there.
    """
    wanted = [cache.length + n for cache, n in zip(caches, counts, strict=True)]
    most = max(wanted)
    lacking = [c for c, n in zip(caches, wanted, strict=True) if c.store.room < n]
    stores = [cache.store for cache in caches if cache not in lacking]
    if lacking and not (stores and stores[0].admit(lacking, most)):
        tiles = _tiles(max(most, min(2 * most, caches[0].store.limit)))
        slots = 1 << (len(caches) - 1).bit_length()
        caches[0].store.another(slots, tiles).admit(caches)
    for cache, n in zip(caches, wanted, strict=True):
        cache.store.expect(cache.slot, n)


def _tiles(tokens: int) -> int:
    return -(-tokens // TILE)
