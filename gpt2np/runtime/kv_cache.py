"""The KV cache: keys and values of earlier tokens, which later passes reuse.

Shape letters: S sequences, L layers, H heads, h selected heads, D head size (rounded up to LANES).
N tokens of a batch, n selected tokens, T tokens of a sequence, in tiles of TILE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import index
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, is_integer
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.packed_matrix import round_up

TILE = 64
"""Tokens in a tile, a multiple of LANES and at most `kernels.exact.BLOCK`.

It is part of the definition of the exact numbers and of the file of a `Prefix`.
"""
MAX_SLOTS = 16  # sequences per store: the most rows of one small product

Allocator = Callable[["KVStore", tuple[int, ...], DTypeLike], Array | None]


def cache_nbytes(config: GPT2Config, length: int, dtype: DTypeLike = np.float32) -> int:
    """Return how many bytes the keys and values of `length` tokens take."""
    return 2 * config.n_layer * length * config.n_embd * np.dtype(dtype).itemsize


class KVCache:
    """The keys and values of one sequence, in a slot of a `KVStore`.

    `reserve` moves the caches of a batch to adjacent slots of one store. One matrix product then
    computes the attention scores of several sequences.

    Threads may copy one cache at the same time. While a thread appends to a cache or truncates it,
    no other thread may use it.

    Attributes:
        length: T, the number of cached tokens.
        place: the store that holds the keys and values, and the index of the slot in the store.
    """

    _copies: ReferenceType[KVStore] | None = None  # the store of the last copies

    def __init__(
        self, store: KVStore, slot: int = 0, length: int = 0, weights: object = None
    ) -> None:
        """Take the `length` tokens in a slot of a store, which a model with `weights` computes."""
        self.length, self.place = length, (store, slot)
        self._weights = None if weights is None else ref(weights)

    def is_from(self, weights: object) -> bool:
        """Tell whether the cached tokens are computed by the model with these weights."""
        return self._weights is not None and self._weights() is weights

    @property
    def store(self) -> KVStore:
        """The store that holds the keys and values."""
        return self.place[0]

    @property
    def slot(self) -> int:
        """The index of this cache's slot in the store."""
        return self.place[1]

    def read(self, layer: int, heads: slice, n_keys: int, count: int = 1) -> tuple[Array, Array]:
        """Return views of the first `n_keys` keys and values in `count` slots, in whole tiles.

        The first slot is this cache's. A tile has TILE tokens. Returns keys (tiles, count, h, D,
        TILE) and values (tiles, count, h, TILE, D).
        """
        store, slot = self.place
        view = slice(-(-n_keys // TILE)), slice(slot, slot + count), layer, heads
        return store.keys[view], store.values[view]

    def copy(self) -> KVCache:
        """Return an independent cache that contains the same tokens."""
        # This cache stays in its slot, which another thread may be reading.
        other = KVCache(*self.place, self.length)  # shares the slot until the move below
        stores = self.store, self._copies() if self._copies else None
        if not any(store.move_in([other], self.length) for store in stores if store):
            store = self.store.new_store(MAX_SLOTS, _tiles(self.length))  # more copies often follow
            store.move_in([other])
            self._copies = ref(store)
        other._weights = self._weights
        return other

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens.

        Raises:
            InvalidArgumentError: `length` is negative, or the cache has fewer tokens.
        """
        if not (is_integer(length) and 0 <= length <= self.length):
            raise InvalidArgumentError(
                f"length is {length!r}; a cache of {self.length} tokens can be truncated to 0 to "
                f"{self.length}"
            )
        self.length = index(length)
        self.store.zero_beyond(self.slot, self.length)

    def __deepcopy__(self, memo: object) -> KVCache:
        return self.copy()


class KVStore:
    """Memory for the keys and values of several sequences; each sequence has one slot.

    Keys are stored as columns, so that a product with queries reads memory sequentially. The
    system provides the memory page by page when the store is written.

    Attributes:
        keys: (tiles, S, L, H, D, TILE): S slots, L layers, H heads, D channels, TILE tokens.
        values: (tiles, S, L, H, TILE, D). Between passes, values beyond the end of a sequence are
            0: matrix products over adjacent slots read as far as the longest sequence.
        config: the model's config.
    """

    def __init__(
        self,
        config: GPT2Config,
        dtype: DTypeLike = np.float32,
        slots: int = 1,
        tiles: int = 0,
        allocate: Allocator | None = None,
    ) -> None:
        """Allocate zeros: by `allocate`, or privately if that is None or returns None."""
        head_size = round_up(config.n_embd // config.n_head)
        shape = tiles, slots, config.n_layer, config.n_head
        whole = 2, *shape, head_size * TILE
        shared = allocate(self, whole, dtype) if allocate else None
        keys, values = np.zeros(whole, dtype) if shared is None else shared
        self.keys: Array = keys.reshape(*shape, head_size, TILE)
        self.values: Array = values.reshape(*shape, TILE, head_size)
        self.config, self._allocate = config, allocate
        self._nonzero = [0] * slots  # tokens per slot whose values may differ from 0
        self._high_water_mark = [0] * slots  # tokens per slot that have ever taken memory
        self._last_owners: WeakValueDictionary[int, KVCache] = WeakValueDictionary()  # by slot
        self._lock = threading.Lock()

    def new_store(self, slots: int, tiles: int) -> KVStore:
        """Return an empty store for the same model from the same allocator."""
        return KVStore(self.config, self.keys.dtype, slots, tiles, self._allocate)

    def move_in(self, caches: Sequence[KVCache], length: int = 0) -> bool:
        """Move caches to free slots of this store; return False if no cache was moved.

        The store refuses the caches if too few slots are free or if `length` tokens don't fit in a
        slot. It also refuses them if more than half of its memory would stay unused.
        """
        with self._lock:
            last = self._last_owners.items()
            owners = {slot: cache for slot, cache in last if cache.place == (self, slot)}
            free = [slot for slot in range(len(self._nonzero)) if slot not in owners]
            staying = sum(_tiles(cache.length) for cache in owners.values())
            arriving = len(caches) * max(1, _tiles(length))
            is_wasteful = sum(self._high_water_mark) > 2 * TILE * (staying + arriving)
            if len(free) < len(caches) or len(self.keys) < _tiles(length) or is_wasteful:
                return False
            for slot, cache in zip(free, caches, strict=False):
                self._copy(cache, slot)
                self._last_owners[slot] = cache
                # One assignment: Ctrl-C must not leave a cache between two stores.
                cache.place = self, slot
            return True

    def _copy(self, cache: KVCache, slot: int) -> None:
        tiles = _tiles(cache.length)
        self.zero_beyond(slot, 0)
        self.reserve_slot(slot, tiles * TILE)  # before the copy, in case Ctrl-C interrupts it
        self.keys[:tiles, slot] = cache.store.keys[:tiles, cache.slot]
        self.values[:tiles, slot] = cache.store.values[:tiles, cache.slot]

    def reserve_slot(self, slot: int, length: int) -> None:
        """Record that up to `length` tokens will be written to a slot, for `zero_beyond`."""
        self._nonzero[slot] = max(self._nonzero[slot], length)
        self._high_water_mark[slot] = max(self._high_water_mark[slot], length)

    def zero_beyond(self, slot: int, length: int) -> None:
        """Set the values beyond the first `length` tokens of a slot to 0."""
        tile, offset = divmod(length, TILE)
        if self._nonzero[slot] > length:
            self.values[tile, slot, :, :, offset:] = 0
            self.values[tile + 1 : _tiles(self._nonzero[slot]), slot] = 0
            self._nonzero[slot] = length


@dataclass(frozen=True)
class KVWrite:
    """The slot mapping of n tokens, a range of the batch: where `store` has their keys and values.

    `tile`, `offset` and `slot` (n,) are the place of each token; integers for a pass over a single
    token, because NumPy indexes faster with integers.
    """

    store: KVStore
    tokens: slice
    tile: IntArray | int
    offset: IntArray | int
    slot: IntArray | int

    def append(self, layer: int, heads: slice, kv: Array) -> None:
        """Write one layer's keys and values of the n tokens to the store.

        `kv` (2, h, N, D) has the keys and values of all tokens of the batch.
        """
        place = self.tile, self.slot, layer, heads
        keys, values = kv[:, :, self.tokens].swapaxes(1, 2)  # (n, h, D) each
        self.store.keys[(*place, slice(None), self.offset)] = keys
        self.store.values[(*place, self.offset)] = values


def kv_writes(caches: Sequence[KVCache], sequences: IntArray, positions: IntArray) -> list[KVWrite]:
    """Return the slot mappings of new tokens; consecutive caches in one store share a mapping.

    `sequences` (N,), in ascending order, has the index of each token's cache, and `positions` (N,)
    the token's place in it.
    """
    if len(positions) == 1:
        store, slot = caches[sequences.item()].place
        return [KVWrite(store, slice(0, 1), *divmod(positions.item(), TILE), slot)]
    tiles, offsets = np.divmod(positions, TILE)
    slots = np.array([cache.place[1] for cache in caches])[sequences]
    writes = list[KVWrite]()
    start, end = 0, 0
    for store, run in groupby(caches, lambda cache: cache.place[0]):
        end += len(list(run))
        stop = int(np.searchsorted(sequences, end))
        part = slice(start, stop)
        writes.append(KVWrite(store, part, tiles[part], offsets[part], slots[part]))
        start = stop
    return writes


def reserve(caches: Sequence[KVCache], counts: Sequence[int]) -> None:
    """Ensure that each cache has capacity for new tokens; `counts` has their number per cache.

    If possible, caches without capacity move to the store of a cache with capacity. Otherwise, all
    caches move to adjacent slots of new stores. A new store has capacity for twice the longest
    sequence, up to the context length.
    """
    lengths = [cache.length + n for cache, n in zip(caches, counts, strict=True)]
    lacking = [c for c, n in zip(caches, lengths, strict=True) if len(c.place[0].keys) * TILE < n]
    if lacking:
        stores = {id(cache.store): cache.store for cache in caches if cache not in lacking}
        if not any(store.move_in(lacking, max(lengths)) for store in stores.values()):
            for start in range(0, len(caches), MAX_SLOTS):
                group, length = caches[start:][:MAX_SLOTS], max(lengths[start:][:MAX_SLOTS])
                tiles = _tiles(max(length, min(2 * length, group[0].store.config.n_positions)))
                slots = 1 << (len(group) - 1).bit_length()  # so that more sequences can join
                group[0].store.new_store(slots, tiles).move_in(group)
    for cache, n in zip(caches, lengths, strict=True):
        store, slot = cache.place
        store.reserve_slot(slot, n)


def roll_back(caches: Sequence[KVCache], lengths: Sequence[int]) -> None:
    """Truncate the caches to their lengths before a pass that failed."""
    for cache, length in zip(caches, lengths, strict=True):
        cache.truncate(length)


def _tiles(tokens: int) -> int:
    return -(-tokens // TILE)
