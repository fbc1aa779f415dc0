"""A group of processes that compute each forward pass together.

Python threads wait for the interpreter lock (GIL) between NumPy calls: a fifth of a long prompt's
time. Matrix products of a few tens of microseconds even get slower with threads. Processes have no
common lock. The process that owns the model forks workers, which share the weights without a copy.
The owner and the workers are the ranks (`gpt2np.runtime.ranks`). During a pass, ranks spin at
barriers; between passes, the workers sleep.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.kernels.matmul import SMALL_BATCH, splits_exactly
from gpt2np.kernels.threads import inline
from gpt2np.runtime.kv_cache import KVCache, KVStore, private_zeros, roll_back
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.rank_tuner import RankTuner
from gpt2np.runtime.ranks import COUNTER_STRIDE, Rank, RankFailedError
from gpt2np.runtime.shared_memory import SharedMemory
from gpt2np.runtime.worker_process import (
    MAX_MESSAGE,
    Worker,
    fork_worker,
    is_forking_worker,
    kill_workers,
    wait_for_blas,
)

if TYPE_CHECKING:
    import socket

_MAX_HEADER = 32  # bytes of a message before the task
_FORK_TIMEOUT_S = 0.5  # how long the first pass waits until BLAS's threads sleep


class ProcessGroup:
    """The processes that compute one model's passes, managed by rank 0, which owns the model.

    Workers are forked when a pass first needs them, and stay for later passes. If a worker fails,
    rank 0 computes all later passes alone. As long as the group exists, BLAS uses one thread,
    because a fork during a multithreaded matrix product can cause a deadlock.

    Attributes:
        world_size: the largest number of ranks of a pass.
        tuner: chooses the number of ranks of each pass; if None, a pass has `world_size` ranks.

    Raises:
        OSError: the system does not provide shared memory.
    """

    def __init__(
        self,
        runner: ModelRunner,
        world_size: int,
        owner: object,
        tuner: RankTuner | None = None,
        max_width: int = 0,
        max_kept: int = 0,
    ) -> None:
        """Set up shared memory, without forking workers yet.

        `max_width` is the largest number of outputs of a layer, padding included. Up to `max_kept`
        bytes of freed caches are kept for later caches. The workers end when `owner` is deleted or
        this process exits.
        """
        address_space = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self._memory = SharedMemory(address_space, max_kept=max_kept)
        self._runner = runner
        self.world_size = world_size
        self.tuner = tuner
        self._max_width = max_width
        self._workers: list[Worker] = []
        self._is_busy = False  # workers are being forked, or compute a pass
        self._fork_timeout = 0.0 if tuner else _FORK_TIMEOUT_S
        self._store_offsets: weakref.WeakKeyDictionary[KVStore, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._settings = ExitStack()
        self._settings.enter_context(single_threaded_blas())
        self.end = weakref.finalize(owner, _end, self._workers, self._settings, os.getpid())
        _groups.add(self)

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers; none before the first pass that needs them."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """Wait for the pass in progress, then end the workers."""
        with self._lock:
            self.world_size = 1
            self.end()

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Allocate zeros for a KV store: in shared memory if possible, else in private memory."""
        shared = None
        if self.world_size > 1 and np.prod(shape):
            shared = self._memory.zeros(shape, dtype)
        if shared is None:
            return private_zeros(store, shape, dtype)
        array, self._store_offsets[store] = shared
        store.owner_pid = os.getpid()
        return array

    def run(
        self, sequences: Sequence[IntArray], caches: Sequence[KVCache], logits_indices: IntArray
    ) -> Array | None:
        """Compute a forward pass on one or more ranks, and return the logits (R, V).

        The caches must have capacity for the new tokens. Returns None if another thread's pass is
        running, a cache is in private memory, the token ids exceed MAX_MESSAGE, or a rank fails.
        After any other exception, the caller must roll the caches back.
        """
        if self.world_size == 1 or self._lock.locked():
            return None
        # The block waits if another thread's pass has just begun. Unlike acquire(blocking=False),
        # it can't be interrupted by Ctrl-C with the lock taken.
        with self._lock:
            if self.world_size == 1 or any(c.store not in self._store_offsets for c in caches):
                return None
            lengths = [cache.length for cache in caches]
            try:
                if self.tuner is None:
                    return self._run_on_ranks(self.world_size, sequences, caches, logits_indices)
                return self._run_timed(self.tuner, sequences, caches, logits_indices)
            except RankFailedError as error:
                roll_back(caches, lengths)
                self.world_size = 1
                if self.end.alive:  # otherwise this process exits, which has ended the workers
                    self.end()
                    warnings.warn(f"the model continues on one process: {error}", stacklevel=3)
                return None

    def _run_timed(
        self,
        tuner: RankTuner,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
    ) -> Array | None:
        """Compute a pass on as many ranks as the tuner chooses; report the time to the tuner."""
        n_tokens, n_workers = sum(map(len, sequences)), len(self._workers)
        if not splits_exactly(n_tokens):
            # The number of ranks would change bits, and so sampled texts from run to run.
            return self._runner.run(sequences, caches, logits_indices)
        n_ranks = tuner.choose(n_tokens, n_workers + 1)
        start = time.perf_counter()
        if n_ranks == 1:
            logits: Array | None = self._runner.run(sequences, caches, logits_indices)
        else:
            logits = self._run_on_ranks(n_ranks, sequences, caches, logits_indices)
        if logits is not None and n_ranks <= n_workers + 1:  # without forks, which happen once
            tuner.record(n_tokens, n_ranks, time.perf_counter() - start)
        return logits

    def _run_on_ranks(
        self,
        n_ranks: int,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
    ) -> Array | None:
        runner = self._runner
        places = [(c.length, c.slot, *self._store_place(c.store)) for c in caches]
        task = [[ids.tolist() for ids in sequences], places, logits_indices.tolist()]
        task_json = json.dumps(task, separators=(",", ":"))
        if len(task_json) + _MAX_HEADER > MAX_MESSAGE:
            return None
        try:
            if self._is_busy:
                kill_workers(self._workers)
            lacks_workers = len(self._workers) < n_ranks - 1
            if lacks_workers and not wait_for_blas(self._fork_timeout):
                self._fork_timeout = 0.0
                return None  # a later pass tries again
            self._is_busy = True
            if lacks_workers:
                self._fork_workers(n_ranks - 1)
            rank = self._rank(n_ranks)
            # Ranks that sat out passes get the number of barriers so far.
            message = f"[{n_ranks},{rank.barrier_counters[0]},{task_json}]".encode()
            for worker in self._workers[: n_ranks - 1]:
                worker.send(message)
            with inline():
                logits = runner.run(sequences, caches, logits_indices, rank=rank).copy()
            self._is_busy = False
            return logits
        except BaseException:
            kill_workers(self._workers)  # they must stop writing to the KV caches
            raise

    def _store_place(self, store: KVStore) -> tuple[int, int, int]:
        tiles, slots = store.keys.shape[:2]
        return self._store_offsets[store], slots, tiles

    def _fork_workers(self, count: int) -> None:
        """Fork workers until there are `count`; if there were none, set up memory for all ranks."""
        workers = self._workers
        if not workers:
            self._create_rank = self._set_up_ranks()
        parent = os.getpid()
        while len(workers) < count:
            create_rank = partial(
                self._create_rank,
                rank=len(workers) + 1,
                failure=lambda: "" if os.getppid() == parent else "rank 0 has ended",
            )
            fork_worker(workers, partial(_serve, self._runner, create_rank, self._memory))

    def _set_up_ranks(self) -> Callable[..., Rank]:
        """Allocate shared buffers and barrier counters. Returns a function that creates a rank."""
        dtype = self._runner.dtype
        size = SMALL_BATCH * self._max_width * dtype.itemsize
        shared_buffers = [np.frombuffer(mmap.mmap(-1, size), dtype) for _ in range(2)]
        counters = memoryview(mmap.mmap(-1, 8 * COUNTER_STRIDE * self.world_size)).cast("q")
        workers = self._workers  # not self, which a rank must not keep alive
        create_rank = partial(Rank, shared_buffers=shared_buffers, barrier_counters=counters)
        self._rank = cache(
            lambda n_ranks: create_rank(
                rank=0,
                world_size=n_ranks,
                failure=lambda: next(filter(None, map(Worker.failure, workers[: n_ranks - 1])), ""),
            )
        )
        return create_rank

    def forget_workers(self) -> None:
        """Drop the references to workers in a forked child; the workers belong to the parent."""
        self.world_size, self._lock = 1, threading.Lock()
        for worker in self._workers:
            worker.socket.close()
        self._workers.clear()


def _end(workers: list[Worker], settings: ExitStack, owner_pid: int) -> None:
    """Kill the workers and restore BLAS's thread count, if this process owns the group."""
    if os.getpid() == owner_pid:
        kill_workers(workers)
        settings.close()


def _serve(
    runner: ModelRunner,
    create_rank: Callable[..., Rank],
    memory: SharedMemory,
    messages: socket.socket,
) -> None:
    """Compute this worker's share of every pass, until rank 0 closes the socket or ends."""
    rank_of = cache(lambda n_ranks: create_rank(world_size=n_ranks))
    caches = _WorkerCaches(runner, memory)
    with inline(), np.errstate(all="ignore"):  # rank 0 warns
        while message := messages.recv(MAX_MESSAGE):
            n_ranks, barriers_reached, (ids, places, logits_indices) = json.loads(message)
            rank = rank_of(n_ranks)
            rank.barrier_counters[rank.rank * COUNTER_STRIDE] = barriers_reached
            sequences = [np.array(sequence, np.int64) for sequence in ids]
            indices = np.array(logits_indices, np.int64)
            runner.run(sequences, caches.attach(places), indices, rank=rank)


class _WorkerCaches:
    """A worker's KV caches: views of the shared memory that holds rank 0's caches.

    Each pass gets the KVCache objects of earlier passes: ModelRunner finds earlier batches by them.
    """

    def __init__(self, runner: ModelRunner, memory: SharedMemory) -> None:
        self._runner, self._memory = runner, memory
        self._stores: dict[tuple[int, ...], KVStore] = {}
        self._caches: dict[tuple[int, ...], KVCache] = {}

    def attach(self, places: Sequence[Sequence[int]]) -> list[KVCache]:
        """Return the KV cache at each place in shared memory.

        A place is (number of cached tokens, slot, byte offset of the store, its slots, its tiles).
        """
        stores: dict[tuple[int, ...], KVStore] = {}
        caches: dict[tuple[int, ...], KVCache] = {}
        for length, slot, *store_place in places:
            place = tuple(store_place)
            stores[place] = stores.get(place) or self._stores.get(place) or self._store(*place)
            key = (slot, *place)
            caches[key] = self._caches.get(key) or KVCache.in_slot(stores[place], slot, length)
            caches[key].length = length
        self._stores, self._caches = stores, caches
        return list(caches.values())

    def _store(self, offset: int, slots: int, tiles: int) -> KVStore:
        def allocate(_: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return self._memory.array_at(offset, shape, dtype)

        return KVStore(self._runner.config, self._runner.dtype, slots, tiles, allocate)


_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in () if is_forking_worker() else _groups:
        group.forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
