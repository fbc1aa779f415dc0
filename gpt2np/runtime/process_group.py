"""The ranks that compute each forward pass of one model together.

Python threads wait for the interpreter lock (GIL) between NumPy calls: a fifth of a long prompt's
time. Matrix products of a few tens of microseconds even get slower with threads. So the program,
rank 0, and its workers (`gpt2np.runtime.workers`) compute a pass as ranks (`gpt2np.runtime.ranks`).
During a pass, ranks spin at barriers; between passes, the workers sleep.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.kernels.matmul import splits_exactly
from gpt2np.runtime.kv_cache import KVCache, KVStore, roll_back
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.rank_tuner import RankTuner
from gpt2np.runtime.ranks import RankFailedError, has_gil
from gpt2np.runtime.workers import SharedMemory, Workers, fork


def create_workers(runner: ModelRunner, world_size: int, max_width: int, max_kept: int) -> Workers:
    """Return workers for up to `world_size` ranks: processes if Python's threads have a GIL."""
    memory = SharedMemory(max_kept) if has_gil() else None
    return Workers(runner, world_size, max_width, memory)


class ProcessGroup:
    """The program, which is rank 0 and owns the model, and its workers.

    Workers are started when a pass first needs them, and stay for later passes. If a worker fails,
    rank 0 computes all later passes alone. As long as the group exists, BLAS uses one thread,
    because a fork during a multithreaded matrix product can cause a deadlock. Without a `tuner`,
    which chooses the number of ranks, each pass has `world_size` ranks.
    """

    def __init__(
        self,
        runner: ModelRunner,
        workers: Workers,
        world_size: int,
        owner: object,
        tuner: RankTuner | None = None,
    ) -> None:
        """Form a group, whose workers end when `owner` is deleted or this process exits."""
        self._runner = runner
        self.workers, self.world_size, self.tuner = workers, world_size, tuner
        self._lock = threading.Lock()
        ending = ExitStack()
        ending.enter_context(single_threaded_blas())
        ending.callback(workers.stop)
        self.end = weakref.finalize(owner, ending.close)
        _groups.add(self)

    def close(self) -> None:
        """Wait for the pass in progress, then end the workers."""
        with self._lock:
            self.world_size = 1
            self.end()

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Allocate zeros for a KV store, if possible in memory that the workers share."""
        is_shared = self.world_size > 1 and np.prod(shape)
        array = self.workers.allocate(store, shape, dtype) if is_shared else None
        return np.zeros(shape, dtype) if array is None else array

    def run(
        self, sequences: Sequence[IntArray], caches: Sequence[KVCache], logits_indices: IntArray
    ) -> Array | None:
        """Compute a forward pass on one or more ranks, and return the logits (R, V).

        The caches must have capacity for the new tokens. Returns None if another thread's pass is
        running, the workers don't share a cache, or a rank fails. After any other exception, the
        caller must roll the caches back.
        """
        if self.world_size == 1 or self._lock.locked():
            return None
        # The block waits if another thread's pass has just begun. Unlike acquire(blocking=False),
        # it can't be interrupted by Ctrl-C with the lock taken.
        with self._lock:
            stores = {cache.store for cache in caches}
            if self.world_size == 1 or any(self.workers.handle(store) is None for store in stores):
                return None
            lengths = [cache.length for cache in caches]

            def compute(n_ranks: int) -> Array:
                if n_ranks == 1:
                    return self._runner.run(sequences, caches, logits_indices)
                return self.workers.run(n_ranks, sequences, caches, logits_indices)

            try:
                if self.tuner is None:
                    return compute(self.world_size)
                return self._compute_timed(self.tuner, sum(map(len, sequences)), compute)
            except RankFailedError as error:
                roll_back(caches, lengths)
                self.world_size = 1
                if self.end.alive:  # otherwise this process exits, which has ended the workers
                    self.end()
                    warnings.warn(f"the model continues on one process: {error}", stacklevel=3)
                return None

    def _compute_timed(
        self, tuner: RankTuner, n_tokens: int, compute: Callable[[int], Array]
    ) -> Array:
        """Compute a pass on as many ranks as the tuner chooses; report the time to the tuner."""
        if not splits_exactly(n_tokens):
            # The number of ranks would change bits, and so sampled texts from run to run.
            return compute(1)
        choice, n_started = tuner.choice(n_tokens), 1 + len(self.workers)
        n_ranks, start = choice.next_ranks, time.perf_counter()
        logits = compute(n_ranks)
        if n_ranks <= n_started:  # a start happens once
            choice.record(n_tokens, n_ranks, time.perf_counter() - start)
        return logits

    def forget_workers(self) -> None:
        """Leave the workers to the parent of this forked process."""
        self.world_size, self._lock = 1, threading.Lock()
        self.end.detach()
        self.workers.forget()


_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in () if getattr(fork, "is_of_worker", False) else _groups:
        group.forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
