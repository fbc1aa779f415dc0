"""The keys and values of the tokens that sequences have seen, so as to compute them only once.

Shape letters: S sequences, L layers, H heads, h some of them, D head size (rounded up to whole
lanes), N packed new tokens, n of them, T tokens seen, in tiles of TILE.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.packed_matrix import padded

Array = NDArray[Any]

TILE = 64  # tokens
MOST_SLOTS = 16  # of a store, as many rows as one product takes


Memory = Callable[["Store", tuple[int, ...], DTypeLike], Array]


def own_memory(_: Store, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Zeros that no other process sees."""
    return np.zeros(shape, dtype)


def cache_nbytes(config: GPT2Config, length: int, dtype: DTypeLike = np.float32) -> int:
    """Bytes of the keys and values of `length` tokens."""
    return 2 * config.n_layer * length * config.n_embd * np.dtype(dtype).itemsize


class KVCache:
    """One sequence's keys and values, which can be cut back.

    They are in a slot of a `Store`. `make_room` brings caches that are used together side by side
    in one, so that one product serves all of their sequences.

    Attributes:
        length: the number of tokens whose keys and values are held, T.
        place: the store, and which of its slots.
    """

    def __init__(
        self, config: GPT2Config, dtype: DTypeLike = np.float32, memory: Memory = own_memory
    ) -> None:
        self.length = 0
        self.place = Store(config, dtype, slots=1, tiles=0, memory=memory), 0

    @classmethod
    def within(cls, store: Store, slot: int, length: int) -> KVCache:
        """The cache that has a slot of a store."""
        cache = cls.__new__(cls)
        cache.length, cache.place = length, (store, slot)
        return cache

    @property
    def store(self) -> Store:
        """Where the keys and values are."""
        store = self.place[0]
        if store.process not in (None, os.getpid()):
            raise InvalidArgumentError(
                "another process has this cache, of which this is a fork; make a new one"
            )
        return store

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
        store, slot = self.place
        some = slice(_tiles(seen)), slice(slot, slot + count), layer, heads
        return store.keys[some], store.values[some]

    def lies_behind(self, other: KVCache) -> bool:
        """Whether its slot is the one that follows the other's."""
        return self.store is other.store and self.slot == other.slot + 1

    def advance(self, n: int) -> None:
        """Count n tokens that every layer has put in the store."""
        self.length += n

    def copy(self) -> KVCache:
        """Another cache of the same tokens, which grows on its own."""
        other = KVCache.within(*self.place, self.length)  # until it has a slot of its own
        if not self.store.admit([other]):  # a first copy is often not the last
            self.store.another(MOST_SLOTS, _tiles(self.length)).admit([self, other])
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; InvalidArgumentError if there are fewer."""
        if not 0 <= length <= self.length:
            raise InvalidArgumentError(f"can't cut a cache of {self.length} tokens to {length}")
        self.length = index(length)
        self.store.clear(self.slot, self.length)

    def __getstate__(self) -> dict[str, Any]:
        some = slice(_tiles(self.length)), self.slot
        arrays = {"keys": self.store.keys[some].copy(), "values": self.store.values[some].copy()}
        return {"config": self.store.config, "length": self.length, **arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        keys, values = state["keys"], state["values"]
        store = Store(state["config"], keys.dtype, slots=1, tiles=len(keys))
        store.keys[:, 0], store.values[:, 0] = keys, values
        self.length, self.place = state["length"], (store, 0)
        store.admit([self])


class Store:
    """Room for the keys and values of several sequences; the system gives memory as it is used.

    Keys are columns, as products with queries read them from one end to the other.

    Attributes:
        keys: (tiles, S, L, H, D, TILE).
        values: (tiles, S, L, H, TILE, D). Between passes they are 0 beyond a sequence's end, not
            left from another one, as they are multiplied by 0 where a neighbour is longer.
        config: of the model.
        process: the only one that may use it; None if its forks may, too.
    """

    def __init__(
        self,
        config: GPT2Config,
        dtype: DTypeLike,
        slots: int,
        tiles: int,
        memory: Memory = own_memory,
    ) -> None:
        size = padded(config.n_embd // config.n_head)
        each = tiles, slots, config.n_layer, config.n_head
        self.process: int | None = None
        keys, values = memory(self, (2, *each, size * TILE), dtype)
        self.keys: Array = keys.reshape(*each, size, TILE)
        self.values: Array = values.reshape(*each, TILE, size)
        self.config, self._memory = config, memory
        self._reach = [0] * slots  # how many tokens may have values other than 0
        self._used = [0] * slots  # how many have ever been here: they take memory
        self._owners: WeakValueDictionary[int, KVCache] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """How many tokens each sequence may have here."""
        return len(self.keys) * TILE

    def another(self, slots: int, tiles: int, memory: Memory | None = None) -> Store:
        """An empty store for the same model, of the same memory unless another is given."""
        return Store(self.config, self.keys.dtype, slots, tiles, memory or self._memory)

    def admit(self, caches: Sequence[KVCache], length: int = 0) -> bool:
        """Move caches here, each to a slot that no other has, with room for `length` tokens.

        They must fit. Nothing is done and the answer is False if there are too few free slots or is
        less room, or if more than half of the memory is of sequences that have gone.
        """
        with self._lock:
            free = [slot for slot in range(len(self._reach)) if slot not in self._owners]
            staying = sum(_tiles(cache.length) for cache in self._owners.values())
            coming = len(caches) * max(1, _tiles(length))
            wasted = sum(self._used) > 2 * TILE * (staying + coming)
            if len(free) < len(caches) or self.room < length or wasted:
                return False
            for slot, cache in zip(free, caches, strict=False):
                self._copy(cache, slot)
                self._owners[slot] = cache
                before, cache.place = cache.place, (self, slot)  # at once, for Ctrl-C's sake
                if before[0] is not self:
                    before[0].leave(before[1], cache)
            return True

    def _copy(self, cache: KVCache, slot: int) -> None:
        tiles = _tiles(cache.length)
        self.clear(slot, 0)
        self.expect(slot, tiles * TILE)  # before it is so, for Ctrl-C's sake
        self.keys[:tiles, slot] = cache.store.keys[:tiles, cache.slot]
        self.values[:tiles, slot] = cache.store.values[:tiles, cache.slot]

    def leave(self, slot: int, cache: KVCache) -> None:
        """Let others have a slot, if it is this cache's."""
        if self._owners.get(slot) is cache:
            del self._owners[slot]

    def expect(self, slot: int, length: int) -> None:
        """So many tokens are going to be put in a slot."""
        self._reach[slot] = max(self._reach[slot], length)
        self._used[slot] = max(self._used[slot], length)

    def clear(self, slot: int, length: int) -> None:
        """Make the values beyond so many tokens 0."""
        tile, at = divmod(length, TILE)
        if self._reach[slot] > length:
            self.values[tile, slot, :, :, at:] = 0
            self.values[tile + 1 : _tiles(self._reach[slot]), slot] = 0
            self._reach[slot] = length


@dataclass(frozen=True)
class NewTokens:
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

    def among(self, chosen: NDArray[np.int64]) -> NewTokens:
        """Those among the `chosen` packed ones, in rising order, which are packed anew."""
        start, stop = np.searchsorted(chosen, (self.tokens.start, self.tokens.stop))
        some = chosen[start:stop] - self.tokens.start
        tokens = slice(int(start), int(stop))
        return NewTokens(self.store, tokens, self.tile[some], self.slot[some], self.at[some])

    def put(self, layer: int, heads: slice, keys: Array, values: Array) -> None:
        """Keep the packed tokens' keys and values (h, N, D) of some heads, as far as they are here.

        They count only from `KVCache.advance` on, when every layer has put in its own.
        """
        some = self.tile, self.slot, layer, heads
        self.store.keys[(*some, slice(None), self.at)] = keys[:, self.tokens].swapaxes(0, 1)
        self.store.values[(*some, self.at)] = values[:, self.tokens].swapaxes(0, 1)


def new_tokens(caches: Sequence[KVCache], tokens: Sequence[slice]) -> list[NewTokens]:
    """The new tokens of sequences, store by store: which of the packed ones are each cache's."""
    runs: list[list[tuple[KVCache, slice]]] = []
    for cache, some in zip(caches, tokens, strict=True):
        if not runs or runs[-1][-1][0].store is not cache.store:
            runs.append([])
        runs[-1].append((cache, some))
    return [_in_store(run) for run in runs]


def _in_store(run: Sequence[tuple[KVCache, slice]]) -> NewTokens:
    counts = [tokens.stop - tokens.start for _, tokens in run]
    starts = [cache.length for cache, _ in run]
    seen = [np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]
    tile, at = np.divmod(np.concatenate(seen), TILE)
    slot = np.repeat([cache.slot for cache, _ in run], counts)
    return NewTokens(run[0][0].store, slice(run[0][1].start, run[-1][1].stop), tile, slot, at)


def make_room(
    caches: Sequence[KVCache], counts: Sequence[int], memory: Memory | None = None
) -> None:
    """Let each cache have room for so many more tokens.

    Those that have none move to the store of others, if they can. Else all move to new stores of at
    most MOST_SLOTS with room for twice as many tokens, as far as the context reaches, and lie there
    side by side.
    """
    wanted = [cache.length + n for cache, n in zip(caches, counts, strict=True)]
    lacking = [c for c, n in zip(caches, wanted, strict=True) if c.store.room < n]
    stores = {id(cache.store): cache.store for cache in caches if cache not in lacking}
    if lacking and not any(store.admit(lacking, max(wanted)) for store in stores.values()):
        for start in range(0, len(caches), MOST_SLOTS):
            some = slice(start, start + MOST_SLOTS)
            _side_by_side(caches[some], max(wanted[some]), memory)
    for cache, n in zip(caches, wanted, strict=True):
        cache.store.expect(cache.slot, n)


def _side_by_side(caches: Sequence[KVCache], length: int, memory: Memory | None) -> None:
    store = caches[0].store
    tiles = _tiles(max(length, min(2 * length, store.config.n_positions)))
    slots = 1 << (len(caches) - 1).bit_length()  # a power of 2, so that some more can come
    store.another(slots, tiles, memory).admit(caches)


def _tiles(tokens: int) -> int:
    return -(-tokens // TILE)
