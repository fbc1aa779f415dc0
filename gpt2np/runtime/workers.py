"""The workers that compute ranks 1, 2, … of each pass; the program itself is rank 0.

Where Python has no interpreter lock (GIL), workers are threads, which need no shared memory, and
work on every platform. Otherwise they are forked processes, which share the weights and the KV
caches without a copy.
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
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.interrupts import held_signals
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.threads import inline
from gpt2np.runtime.kv_cache import KVCache, KVStore
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.ranks import COUNTER_STRIDE, Rank, RankFailedError

_MAX_VIEWS = 64  # stores whose views a worker keeps
_BLAS_TIMEOUT_S = 0.5  # how long a fork waits until BLAS's threads sleep

fork = threading.local()  # .is_of_worker: whether the fork in progress creates a worker


class Workers:
    """The workers of one model; `len` is their number. With `memory`, they are processes."""

    def __init__(
        self,
        runner: ModelRunner,
        world_size: int,
        max_width: int,
        memory: SharedMemory | None = None,
    ) -> None:
        """Prepare for `world_size` ranks, and layers of up to `max_width` outputs."""
        self._runner, self._memory = runner, memory
        self._workers: list[tuple[Any, Any]] = []  # each with rank 0's end of a pipe
        size = SMALL_BATCH * max_width * runner.dtype.itemsize
        self._buffers = [np.frombuffer(mmap.mmap(-1, size), runner.dtype) for _ in range(2)]
        n = COUNTER_STRIDE * world_size
        # Threads run on ARM, too, where only a list's items are written in order.
        self._counters: Any = memoryview(mmap.mmap(-1, 8 * n)).cast("q") if memory else [0] * n
        self._handles: WeakKeyDictionary[KVStore, Any] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._workers)

    def _start(self, count: int) -> None:
        """Start workers until there are `count`."""
        if not self._workers:
            for i in range(0, len(self._counters), COUNTER_STRIDE):
                self._counters[i] = 0
        while len(self._workers) < count:
            if self._memory:
                _wait_for_blas()
            try:
                self._add_worker()
            # An AssertionError: this process is itself a daemon of multiprocessing.
            except (OSError, ImportError, RuntimeError, AssertionError) as error:
                raise RankFailedError(f"cannot start another rank: {error}") from error

    def _add_worker(self) -> None:
        from multiprocessing import dummy, get_context

        context: Any = get_context("fork") if self._memory else dummy  # `dummy` has threads
        ours, theirs = context.Pipe()
        process = context.Process(target=self._work, args=(len(self) + 1, theirs))
        process.daemon = True
        # A fork calls Python functions, such as one that releases the lock of `logging`. If a
        # handler raised KeyboardInterrupt there, the lock would stay locked.
        with theirs, held_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with several threads
            fork.is_of_worker = True
            try:
                process.start()
            finally:
                fork.is_of_worker = False
            self._workers.append((process, ours))

    def _work(self, number: int, connection: Any) -> None:
        """Compute a worker's share of every task, until rank 0 stops the worker or ends."""
        try:
            if self._memory:
                _detach(connection.fileno())
            with inline(), np.errstate(all="ignore"):  # rank 0 warns
                store = lru_cache(_MAX_VIEWS)(self._view) if self._memory else lambda own: own
                failure = partial(_failure_of_rank_0, connection)
                for world_size, barriers, ids, places, indices in iter(connection.recv, None):
                    self._counters[number * COUNTER_STRIDE] = barriers
                    sequences = [np.array(sequence, np.int64) for sequence in ids]
                    caches = [KVCache(store(handle), *place) for handle, *place in places]
                    rank = Rank(number, world_size, cycle(self._buffers), self._counters, failure)
                    self._runner.run(sequences, caches, np.array(indices, np.int64), rank=rank)
        except EOFError:
            pass
        except BaseException as error:
            with suppress(OSError):
                connection.send(traceback.format_exception_only(error)[-1].strip())

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

    def forget(self) -> None:
        """In a forked child, drop the parent's workers, and copy KV caches out of shared memory."""
        for _, connection in self._workers:
            connection.close()
        self._workers = []
        for store in list(self._handles):
            store.keys, store.values = store.keys.copy(), store.values.copy()
        self._handles.clear()

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array | None:
        """Allocate zeros for a KV store in shared memory; return None if there is none."""
        shared = self._memory.zeros(shape, dtype) if self._memory else None
        if shared is None:
            return None
        array, start = shared
        self._handles[store] = start, *shape[1:3]
        return array

    def handle(self, store: KVStore) -> Any:
        """Return what tells a worker the store; None if the workers don't share the store."""
        return self._handles.get(store) if self._memory else store

    def _view(self, handle: Any) -> KVStore:
        """Return a view of the store of a handle, in a worker process."""
        assert self._memory
        start, tiles, slots = handle
        config, dtype = self._runner.config, self._runner.dtype
        return KVStore(config, dtype, slots, tiles, partial(self._memory.view, start))

    def run(
        self,
        world_size: int,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
    ) -> Array:
        """Compute a pass, and return the logits (R, V). After an exception, no worker is left.

        Raises:
            RankFailedError: a worker can't be started, or has failed.
        """
        places = [(self.handle(cache.store), cache.slot, cache.length) for cache in caches]
        ids, indices = [ids.tolist() for ids in sequences], logits_indices.tolist()
        try:
            self._start(world_size - 1)
            connections = [connection for _, connection in self._workers[: world_size - 1]]
            failure = partial(_failure_of_workers, connections)
            for connection in connections:
                with suppress(OSError):  # the worker has ended, which the next barrier reports
                    # Ranks that sat out passes get the number of barriers so far.
                    connection.send((world_size, self._counters[0], ids, places, indices))
            rank = Rank(0, world_size, cycle(self._buffers), self._counters, failure)
            with inline():
                return self._runner.run(sequences, caches, logits_indices, rank=rank).copy()
        except BaseException:
            with held_signals():  # a second Ctrl-C must not interrupt it
                self.stop()  # they must stop writing to the KV caches
            raise


def _failure_of_rank_0(connection: Any) -> str:
    # The pipe's end, the order to stop, or the next task, which `Rank` tells apart.
    return "rank 0 has ended" if connection.poll() else ""


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
