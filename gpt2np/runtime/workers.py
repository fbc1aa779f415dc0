"""The workers that compute ranks 1, 2, … of each pass; the program itself is rank 0.

Where Python has no interpreter lock (GIL), workers are threads, which need no shared memory, and
work on every platform. Otherwise they are forked processes (`gpt2np.runtime.worker_process`).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.threads import inline
from gpt2np.runtime.kv_cache import KVCache, KVStore, private_zeros
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.ranks import COUNTER_STRIDE, Rank, RankFailedError

Task = tuple[int, int, list[list[int]], list[tuple[Any, int, int]], list[int]]
"""A pass: world size, barriers so far, token ids, caches (store, slot, length), logits indices."""


class Workers:
    """The worker threads of one model; `len` is their number."""

    def __init__(self, runner: ModelRunner, world_size: int, max_width: int) -> None:
        """Prepare for `world_size` ranks, and layers of up to `max_width` outputs."""
        self._runner = runner
        self._workers: list[tuple[Any, Any]] = []  # each with the queue or pipe of its tasks
        self._buffers = [np.empty(SMALL_BATCH * max_width, runner.dtype) for _ in range(2)]
        self._counters: Any = [0] * (COUNTER_STRIDE * world_size)
        self._error = ""

    def __len__(self) -> int:
        return len(self._workers)

    def start(self, count: int) -> bool:
        """Start workers until there are `count`; return False if that must wait.

        Raises:
            RankFailedError: the system can't start a worker.
        """
        if not self._workers:
            self._error = ""
            for i in range(0, len(self._counters), COUNTER_STRIDE):
                self._counters[i] = 0
        while len(self._workers) < count:
            self._add_worker(len(self._workers) + 1)
        return True

    def _add_worker(self, number: int) -> None:
        tasks: SimpleQueue[Task | None] = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(number, tasks), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit of threads is reached
            raise RankFailedError(f"cannot start another rank: {error}") from error
        self._workers.append((thread, tasks))

    def _work(self, number: int, tasks: SimpleQueue[Task]) -> None:
        try:
            self.serve(number, iter(tasks.get, None), lambda: self._error)
        except BaseException as error:
            text = traceback.format_exception_only(error)[-1].strip()
            self._error = self._error or f"another rank has ended: {text}"

    def stop(self) -> None:
        """Stop all workers, which then write nothing any more. Several threads may call this."""
        self._error = self._error or "rank 0 has stopped"
        workers, self._workers = self._workers, []
        for _, tasks in workers:
            tasks.put(None)
        for thread, _ in workers:
            if thread is not threading.current_thread():  # it collects the model as garbage
                thread.join()

    def forget(self) -> None:
        """Drop the workers in a forked child; the workers belong to the parent."""
        self._workers = []

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Allocate zeros for a KV store, if possible in memory that the workers share."""
        return private_zeros(store, shape, dtype)

    def handle(self, store: KVStore) -> Any:
        """Return what tells a worker the store; None if the workers don't share the store."""
        return store

    def store(self, handle: Any) -> KVStore:
        """Return the store of a handle, in a worker."""
        assert isinstance(handle, KVStore)
        return handle

    def send(self, count: int, task: Task) -> None:
        """Send a task to the first `count` workers. A failure is noticed at the next barrier."""
        for _, tasks in self._workers[:count]:
            tasks.put(task)

    def failure(self, count: int) -> str:
        """Describe the failure of one of the first `count` workers; "" if none has failed."""
        return self._error

    def run(
        self,
        world_size: int,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
    ) -> Array:
        """Compute a pass together with workers that have been started; return the logits (R, V)."""
        places = [(self.handle(cache.store), cache.slot, cache.length) for cache in caches]
        ids, indices = [ids.tolist() for ids in sequences], logits_indices.tolist()
        # Ranks that sat out passes get the number of barriers so far.
        self.send(world_size - 1, (world_size, self._counters[0], ids, places, indices))
        rank = self._rank(0, world_size, partial(self.failure, world_size - 1))
        with inline():
            return self._runner.run(sequences, caches, logits_indices, rank=rank).copy()

    def serve(self, number: int, tasks: Iterable[Task], failure: Callable[[], str]) -> None:
        """Compute a worker's share of every task."""
        with inline(), np.errstate(all="ignore"):  # rank 0 warns
            for world_size, barriers_reached, ids, places, indices in tasks:
                self._counters[number * COUNTER_STRIDE] = barriers_reached
                sequences = [np.array(sequence, np.int64) for sequence in ids]
                caches = [KVCache.in_slot(self.store(handle), *place) for handle, *place in places]
                rank = self._rank(number, world_size, failure)
                self._runner.run(sequences, caches, np.array(indices, np.int64), rank=rank)

    def _rank(self, number: int, world_size: int, failure: Callable[[], str]) -> Rank:
        return Rank(
            rank=number,
            world_size=world_size,
            shared_buffers=self._buffers,
            barrier_counters=self._counters,
            failure=failure,
        )
