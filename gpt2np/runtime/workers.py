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
import pickle
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.interrupts import held_signals
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.threads import inline
from gpt2np.runtime.kv_cache import KVCache, KVStore, private_zeros
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.ranks import COUNTER_STRIDE, Rank, RankFailedError

if TYPE_CHECKING:  # imported when a worker is forked: most starts need none
    from multiprocessing.connection import Connection

_MAX_VIEWS = 64  # stores whose views a worker keeps
_BLAS_TIMEOUT_S = 0.5  # how long a fork waits until BLAS's threads sleep

Task = tuple[int, int, list[list[int]], list[tuple[Any, int, int]], list[int]]
"""A pass: world size, barriers so far, token ids, caches (store, slot, length), logits indices."""

fork = threading.local()  # .is_of_worker: whether the fork in progress creates a worker


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

    def start(self, count: int) -> None:
        """Start workers until there are `count`.

        Raises:
            RankFailedError: the system can't start a worker.
        """
        if not self._workers:
            self._error = ""
            for i in range(0, len(self._counters), COUNTER_STRIDE):
                self._counters[i] = 0
        while len(self._workers) < count:
            self._add_worker(len(self._workers) + 1)

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


class ForkedWorkers(Workers):
    """The worker processes of one model."""

    def __init__(
        self, runner: ModelRunner, world_size: int, max_width: int, max_kept: int = 0
    ) -> None:
        """Set up shared memory; up to `max_kept` bytes of freed KV caches are kept for others."""
        super().__init__(runner, world_size, max_width)
        half_of_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self._memory = SharedMemory(half_of_memory, max_kept)
        self._offsets: weakref.WeakKeyDictionary[KVStore, int] = weakref.WeakKeyDictionary()
        self._views: dict[Any, KVStore] = {}  # the stores of a worker, by handle
        size = self._buffers[0].nbytes
        self._buffers = [np.frombuffer(mmap.mmap(-1, size), runner.dtype) for _ in range(2)]
        self._counters = memoryview(mmap.mmap(-1, 8 * COUNTER_STRIDE * world_size)).cast("q")

    def _add_worker(self, number: int) -> None:
        _wait_for_blas()
        try:
            from multiprocessing import get_context

            context = get_context("fork")
            ours, theirs = context.Pipe()
            arguments = number, theirs, os.getpid()
            process = context.Process(target=self._work_and_exit, args=arguments, daemon=True)
            self._workers.append((process, ours))
            # A fork calls Python functions, such as one that releases the lock of `logging`. If a
            # handler raised KeyboardInterrupt there, the lock would stay locked.
            with theirs, held_signals(), _forking():
                process.start()
        # An AssertionError: this process is itself a daemon of multiprocessing.
        except (OSError, ImportError, AssertionError) as error:
            raise RankFailedError(f"cannot fork another rank: {error}") from error

    def _work_and_exit(self, number: int, connection: Connection, parent: int) -> NoReturn:
        try:
            _detach(connection.fileno())
            text = "rank 0 has ended"
            self.serve(number, _tasks(connection), lambda: "" if os.getppid() == parent else text)
        except BaseException as error:
            with suppress(OSError):
                connection.send(traceback.format_exception_only(error)[-1].strip())
        finally:
            os._exit(0)

    def stop(self) -> None:
        for process, connection in self._workers[::-1]:
            if process.pid:
                process.kill()
                process.join()
            connection.close()
        self._workers = []

    def forget(self) -> None:
        for _, connection in self._workers:
            connection.close()
        super().forget()
        for store in list(self._offsets):
            store.make_private()
        self._offsets.clear()

    def allocate(self, store: KVStore, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        shared = self._memory.zeros(shape, dtype)
        if shared is None:
            return super().allocate(store, shape, dtype)
        array, self._offsets[store] = shared
        return array

    def handle(self, store: KVStore) -> Any:
        tiles, slots = store.keys.shape[:2]
        return (self._offsets[store], slots, tiles) if store in self._offsets else None

    def store(self, handle: Any) -> KVStore:
        if handle not in self._views:
            offset, slots, tiles = handle
            config, dtype = self._runner.config, self._runner.dtype
            view = KVStore(
                config, dtype, slots, tiles, lambda _, *of: self._memory.array_at(offset, *of)
            )
            self._views = dict([*self._views.items(), (handle, view)][-_MAX_VIEWS:])
        return self._views[handle]

    def send(self, count: int, task: Task) -> None:
        message = pickle.dumps(task)
        for _, connection in self._workers[:count]:
            with suppress(OSError):  # the worker has ended
                connection.send_bytes(message)

    def failure(self, count: int) -> str:
        for _, connection in self._workers[:count]:
            reason = ""
            try:
                if not connection.poll():  # neither an error's text nor the end of the process
                    continue
                reason = connection.recv()
            except (EOFError, OSError):
                pass
            return ": ".join(filter(None, ["another rank's process has ended", reason]))
        return ""


class SharedMemory:
    """An allocator of arrays in one range of shared memory, in blocks of 2ⁿ bytes.

    The range takes memory only where arrays have been written. Up to `max_kept` bytes of freed
    blocks keep their memory for later arrays: page faults would take a fifth of a short prompt's
    time, and far more in a virtual machine.

    Raises:
        OSError: the system does not provide the range.
    """

    def __init__(self, size: int, max_kept: int) -> None:
        self._memory = mmap.mmap(-1, size)
        self._memory.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)  # fails early where unsupported
        self.max_kept, self._unused = max_kept, 0  # the start of the part that was never used
        # The freed blocks of 2ⁿ bytes, with and without memory. Finalizers append to the lists
        # without the lock, which the thread that they interrupt may hold.
        self._kept: list[list[int]] = [[] for _ in range(64)]
        self._empty: list[list[int]] = [[] for _ in range(64)]
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """Return an array of zeros and its byte offset, or None if the range is used up."""
        nbytes = max(mmap.PAGESIZE, math.prod(shape) * np.dtype(dtype).itemsize)
        n = (nbytes - 1).bit_length()
        with self._lock:
            kept = self._kept[n].pop() if self._kept[n] else None
            start = kept if kept is not None else self._empty_block(n)
        if start is None:
            return None
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        weakref.finalize(flat, self._free, start, n, os.getpid()).atexit = False
        if kept is not None:
            flat[...] = 0
        return flat.reshape(shape), start

    def _empty_block(self, n: int) -> int | None:
        if self._empty[n]:
            return self._empty[n].pop()
        start, end = self._unused, self._unused + (1 << n)
        if end > len(self._memory):
            return None
        self._unused = end
        return start

    def array_at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the array at an offset that `zeros` returned; workers call this method."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)

    def _free(self, start: int, n: int, process: int) -> None:
        if os.getpid() != process:
            return
        if sum(len(blocks) << i for i, blocks in enumerate(self._kept)) + (1 << n) <= self.max_kept:
            self._kept[n].append(start)
            return
        with suppress(OSError):  # locked memory can't be released; the block is lost
            self._memory.madvise(mmap.MADV_REMOVE, start, 1 << n)
            self._empty[n].append(start)


@contextmanager
def _forking() -> Iterator[None]:
    """Mark the fork as a worker's, without Python's warning of a fork with several threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fork.is_of_worker = True
        try:
            yield
        finally:
            fork.is_of_worker = False


def _tasks(connection: Connection) -> Iterator[Task]:
    """Yield the tasks from rank 0, until it closes the connection or ends."""
    with suppress(EOFError, OSError):
        while message := connection.recv_bytes():
            yield pickle.loads(message)


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
