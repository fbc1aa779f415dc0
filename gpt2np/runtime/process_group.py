"""The ranks that compute each forward pass of one model together.

Python threads wait for the interpreter lock (GIL) between NumPy calls: a fifth of a long prompt's
time. Matrix products of a few tens of microseconds even get slower with threads. So the program,
rank 0, and its workers, ranks 1, 2, …, compute a pass as ranks (`gpt2np.runtime.ranks`). During a
pass, ranks spin at barriers; between passes, the workers sleep.

Where Python has no GIL, workers are threads, which need no shared memory, and work on every
platform. Otherwise they are forked processes, which share the weights and the KV caches without a
copy.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.errors import warn
from gpt2np.interrupts import held_signals
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.kernels.matmul import SMALL_BATCH, splits_exactly
from gpt2np.kernels.threads import inline
from gpt2np.runtime.kv_cache import KVCache, KVStore, reserve, roll_back
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.rank_tuner import RankTuner
from gpt2np.runtime.ranks import COUNTER_STRIDE, Rank, RankFailedError, has_gil

_MAX_VIEWS = 64  # stores whose views a worker keeps
_BLAS_TIMEOUT_S = 0.5  # how long a fork waits until BLAS's threads sleep

_fork = threading.local()  # .is_of_worker: whether the fork in progress creates a worker


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
        world_size: int,
        max_width: int,
        max_kept: int,
        owner: object,
        tuner: RankTuner | None = None,
    ) -> None:
        """Form a group, whose workers end when `owner` is deleted or this process exits.

        Layers have up to `max_width` outputs. Up to `max_kept` bytes of freed KV caches are kept.

        Raises:
            OSError: the system does not provide shared memory.
        """
        self._runner, self.world_size, self.tuner = runner, world_size, tuner
        self._lock = threading.Lock()
        self._memory = SharedMemory(max_kept) if has_gil() else None
        self._workers: list[tuple[Any, Any]] = []  # each with rank 0's end of a pipe
        size = SMALL_BATCH * max_width * runner.dtype.itemsize
        self._buffers = [np.frombuffer(mmap.mmap(-1, size), runner.dtype) for _ in range(2)]
        n = COUNTER_STRIDE * world_size
        # Threads run on ARM, too, where only a list's items are written in order.
        self._counters: Any = (
            memoryview(mmap.mmap(-1, 8 * n)).cast("q") if self._memory else [0] * n
        )
        self._handles: weakref.WeakKeyDictionary[KVStore, Any] = weakref.WeakKeyDictionary()
        ending = ExitStack()
        ending.enter_context(single_threaded_blas())
        ending.callback(self.stop)
        self.end = weakref.finalize(owner, ending.close)
        _groups.add(self)

    def close(self) -> None:
        """Wait for the pass in progress, then end the workers."""
        with self._lock:
            self.world_size = 1
            self.end()

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array | None:
        """Allocate zeros for a KV store in memory that the workers share; None if there is none."""
        if self._memory is None or self.world_size == 1 or not math.prod(shape):
            return None
        if (shared := self._memory.zeros(shape, dtype)) is None:
            return None
        array, start = shared
        self._handles[store] = start, *shape[1:3]
        return array

    def _handle(self, store: KVStore) -> Any:
        """Return what tells a worker the store; None if the workers don't share the store."""
        return self._handles.get(store) if self._memory else store

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
            if self.world_size == 1 or any(self._handle(store) is None for store in stores):
                return None
            lengths = [cache.length for cache in caches]
            compute = partial(self._compute, sequences, caches, logits_indices)
            try:
                if self.tuner is None:
                    return compute(self.world_size)
                return self._compute_timed(self.tuner, sum(map(len, sequences)), compute)
            except RankFailedError as error:
                roll_back(caches, lengths)
                reserve(caches, list(map(len, sequences)))  # again, for the pass on one process
                self.world_size = 1
                if self.end.alive:  # otherwise this process exits, which has ended the workers
                    self.end()
                    warn(f"the model continues on one process: {error}")
                return None

    def _compute_timed(
        self, tuner: RankTuner, n_tokens: int, compute: Callable[[int], Array]
    ) -> Array:
        """Compute a pass on as many ranks as the tuner chooses; report the time to the tuner."""
        if not splits_exactly(n_tokens):
            # The number of ranks would change bits, and so sampled texts from run to run.
            return compute(1)
        choice, n_started = tuner.choice(n_tokens), 1 + len(self._workers)
        n_ranks, start = choice.next_ranks, time.perf_counter()
        logits = compute(n_ranks)
        if n_ranks <= n_started:  # a start happens once
            choice.record(n_tokens, time.perf_counter() - start)
        return logits

    def _compute(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        n_ranks: int,
    ) -> Array:
        """Compute a pass on `n_ranks` ranks. After an exception of several, no worker is left.

        Raises:
            RankFailedError: a worker can't be started, or has failed.
        """
        if n_ranks == 1:
            return self._runner.run(sequences, caches, logits_indices)
        places = [(self._handle(cache.store), cache.slot, cache.length) for cache in caches]
        task = n_ranks, [ids.tolist() for ids in sequences], places, logits_indices.tolist()
        try:
            self._start(n_ranks - 1)
            connections = [connection for _, connection in self._workers[: n_ranks - 1]]
            for number in range(n_ranks):  # a rank may have sat out passes, or failed within one
                self._counters[number * COUNTER_STRIDE] = self._counters[0]
            for connection in connections:
                with suppress(OSError):  # the worker has ended, which the next barrier reports
                    connection.send(task)
            failure = partial(_failure_of_workers, connections)
            rank = Rank(0, n_ranks, cycle(self._buffers), self._counters, failure)
            with inline():
                return self._runner.run(sequences, caches, logits_indices, rank=rank).copy()
        except BaseException:
            with held_signals():  # a second Ctrl-C must not interrupt it
                self.stop()  # they must stop writing to the KV caches
            raise

    def _start(self, count: int) -> None:
        """Start workers until there are `count`."""
        while len(self._workers) < count:
            try:
                self._add_worker()
            # An AssertionError: this process is itself a daemon of multiprocessing.
            except (OSError, ImportError, RuntimeError, AssertionError) as error:
                raise RankFailedError(f"cannot start another rank: {error}") from error

    def _add_worker(self) -> None:
        from multiprocessing import dummy, get_context

        if self._memory:
            _wait_for_blas()
        context: Any = get_context("fork") if self._memory else dummy  # `dummy` has threads
        ours, theirs = context.Pipe()
        process = context.Process(target=self._work, args=(len(self._workers) + 1, theirs))
        process.daemon = True
        # A fork calls Python functions, such as one that releases the lock of `logging`. If a
        # handler raised KeyboardInterrupt there, the lock would stay locked.
        with theirs, held_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with several threads
            _fork.is_of_worker = True
            try:
                process.start()
            finally:
                _fork.is_of_worker = False
            self._workers.append((process, ours))

    def _work(self, number: int, connection: Any) -> None:
        """Compute a worker's share of every task, until rank 0 stops the worker or ends."""
        try:
            if self._memory:
                _detach(connection.fileno())
            with inline(), np.errstate(all="ignore"):  # rank 0 warns
                store = lru_cache(_MAX_VIEWS)(self._view) if self._memory else lambda store: store

                def failure() -> str:
                    # The pipe's end, the order to stop, or the next task, which `Rank` tells apart.
                    return "rank 0 has ended" if connection.poll() else ""

                for n_ranks, ids, places, indices in iter(connection.recv, None):
                    sequences = [np.array(sequence, np.int64) for sequence in ids]
                    caches = [KVCache(store(handle), *place) for handle, *place in places]
                    rank = Rank(number, n_ranks, cycle(self._buffers), self._counters, failure)
                    self._runner.run(sequences, caches, np.array(indices, np.int64), rank=rank)
        except EOFError:
            pass
        except BaseException as error:
            with suppress(OSError):
                connection.send(traceback.format_exception_only(error)[-1].strip())

    def _view(self, handle: Any) -> KVStore:
        """Return a view of the store of a handle, in a worker process."""
        assert self._memory
        start, tiles, slots = handle
        config, dtype = self._runner.config, self._runner.dtype
        return KVStore(config, dtype, slots, tiles, partial(self._memory.view, start))

    def stop(self) -> None:
        """Stop all workers, which then write nothing any more. Several threads may call this."""
        for process, connection in self._workers:
            if self._memory:
                process.kill()
            else:
                connection.send(None)
        for process, connection in self._workers:
            if process is not threading.current_thread():  # it collects the model as garbage
                process.join()
            connection.close()
        self._workers = []

    def forget_workers(self) -> None:
        """In a forked child, drop the parent's workers, and copy KV caches out of shared memory."""
        self.world_size, self._lock = 1, threading.Lock()
        self.end.detach()
        for _, connection in self._workers:
            connection.close()
        self._workers = []
        for store in list(self._handles):
            store.keys, store.values = store.keys.copy(), store.values.copy()
        self._handles.clear()


_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in () if getattr(_fork, "is_of_worker", False) else _groups:
        group.forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _failure_of_workers(connections: Sequence[Any]) -> str:
    for connection in connections:
        try:
            if connection.poll():
                return f"another rank has ended: {connection.recv()}"
        except (EOFError, OSError):
            return "another rank has ended"
    return ""


class SharedMemory:
    """An allocator of arrays in one range of shared memory, in blocks of 2ⁿ bytes.

    The range takes memory only where arrays have been written. Up to `max_kept` bytes of freed
    blocks keep their memory for later arrays: page faults would take a fifth of a short prompt's
    time, and far more in a virtual machine.

    Raises:
        OSError: the system does not provide the range.
    """

    def __init__(self, max_kept: int = 0, size: int | None = None) -> None:
        """Provide a range of `size` bytes, by default half of the machine's memory."""
        size = size or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self._memory = mmap.mmap(-1, size)
        self._memory.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)  # fails early where unsupported
        self._max_kept, self._unused = max_kept, 0  # the start of the part that was never used
        # The freed blocks of 2ⁿ bytes: start, and whether the block has memory. Finalizers append
        # to the lists without the lock, which the thread that they interrupt may hold.
        self._freed: list[list[tuple[int, bool]]] = [[] for _ in range(64)]
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """Return an array of zeros and its byte offset, or None if the range is used up."""
        nbytes = max(mmap.PAGESIZE, math.prod(shape) * np.dtype(dtype).itemsize)
        n = (nbytes - 1).bit_length()
        with self._lock:
            start, was_used = self._freed[n].pop() if self._freed[n] else (self._unused, False)
            end = start + (1 << n)
            if end > len(self._memory):
                return None
            self._unused = max(self._unused, end)
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        weakref.finalize(flat, self._free, start, n, os.getpid()).atexit = False
        if was_used:
            flat[...] = 0
        return flat.reshape(shape), start

    def view(self, start: int, _: object, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the array at an offset that `zeros` returned, for a store of a worker."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)

    def _free(self, start: int, n: int, process: int) -> None:
        if os.getpid() != process:
            return
        kept = sum(used << i for i, blocks in enumerate(self._freed) for _, used in blocks)
        is_kept = kept + (1 << n) <= self._max_kept
        with suppress(OSError):  # locked memory can't be released; the block is lost
            if not is_kept:
                self._memory.madvise(mmap.MADV_REMOVE, start, 1 << n)
            # A block with memory is taken first.
            self._freed[n].insert(len(self._freed[n]) if is_kept else 0, (start, is_kept))


def _detach(kept: int) -> None:
    """Detach a worker from its parent: signals, garbage collection, and files but `kept`.

    A file that stayed open here would hide its end from another program that reads it.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    gc.disable()
    for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if file > 2 and file != kept:
            with suppress(OSError):
                os.close(file)


def _wait_for_blas() -> None:
    """Wait until all BLAS threads are idle: a fork during a matrix product can cause a deadlock.

    Set BLAS to one thread first. Threads of an earlier product may then stay busy for about 20 ms.
    """
    end = time.monotonic() + _BLAS_TIMEOUT_S
    while not _is_blas_idle():
        if time.monotonic() > end:
            raise RankFailedError("cannot fork another rank while a thread multiplies matrices")
        time.sleep(0.001)


def _is_blas_idle() -> bool:
    """Tell whether all threads that Python did not start are asleep."""
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        return all(
            # After the name, which can have any bytes, comes the state: S for sleeping.
            (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"
            for thread in Path("/proc/self/task").iterdir()
            if thread.name not in python_threads
        )
    except OSError:  # a thread has just ended, or too many files are open
        return False
