"""CPU cores that this process can use, and Python threads that share a computation.

This module does not import NumPy, because BLAS reads its thread count when NumPy is imported.
"""

from __future__ import annotations

import contextvars
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from gpt2np.errors import check_argument

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Item = TypeVar("Item")
_thread = threading.local()  # .is_inline: whether parallel_for uses only the calling thread


def usable_cpus() -> int:
    """Return how many CPU cores this process can keep busy at the same time; at least 1.

    On Linux, this is the number of physical cores in the process's CPU affinity, or the CPU quota
    of its control groups (cgroups) if smaller.
    """
    if hasattr(os, "sched_getaffinity"):
        return _count_cores(Path("/sys"), frozenset(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@cache
def _count_cores(system: Path, cpus: Set[int]) -> int:
    """Return the number of physical cores of `cpus`, at most the CPU quota of the cgroup (v2).

    The quota is that of the group at the usual place: in a container, the container's.
    """
    siblings = (f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    cores = {_read(system / file) or file for file in siblings}
    quota, _, period = _read(system / "fs/cgroup/cpu.max").partition(" ")
    is_limited = quota.isdecimal()  # "max" is no limit
    return min(len(cores), math.ceil(int(quota) / int(period))) if is_limited else len(cores)


def _read(file: Path) -> str:
    """Return the content of a text file; "" if the file can't be read."""
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


def set_threads(threads: int) -> None:
    """Set the environment variables from which BLAS takes its thread count, on NumPy's import.

    Raises:
        InvalidArgumentError: `threads` is less than 1.
    """
    check_argument(threads >= 1, "threads", threads, "at least 1")
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def thread_count() -> int:
    """Return the thread count that the environment sets, limited to the usable CPU cores.

    Without a setting, return the number of usable CPU cores.
    """
    # OMP_NUM_THREADS may be a list: one number per level of nested parallelism.
    values = (os.environ.get(v, "").partition(",")[0].strip() for v in THREAD_VARIABLES)
    counts = [int(value) for value in values if value.isdecimal() and int(value)]
    return min([*counts[:1], usable_cpus()])


def parallel_for(function: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
    """Call function(item) for every item, on this thread and on worker threads.

    Returns when all calls are done. At most `threads` threads take part, including the calling
    thread, which begins at once. Threads pay off if `function` releases the interpreter lock (GIL),
    as NumPy's loops do. A nested call of parallel_for inside `function` runs on one thread. Several
    threads may call parallel_for simultaneously.

    Raises an exception of `function`, if any, after all calls in progress have ended. An exception
    on the calling thread, such as KeyboardInterrupt, drops the pending items.
    """
    if threads == 1 or len(items) <= 1 or is_inline():
        for item in items:
            function(item)
        return
    pending, errors = deque(items), list[BaseException]()
    helpers: list[None] = []  # one entry for each worker thread that has begun
    ended: list[None] = []  # and for each that has ended
    results: SimpleQueue[None] = SimpleQueue()  # likewise; this thread waits for it

    def help_caller() -> None:
        helpers.append(None)  # before it takes an item, so that the caller waits
        try:
            _work(function, pending)
        except BaseException as error:
            errors.append(error)
        finally:
            ended.append(None)
            results.put(None)

    try:
        with suppress(RuntimeError):  # no thread can be started: this thread does the work
            queue = _worker_queue()
            for _ in range(min(threads, len(items)) - 1):
                queue.put((contextvars.copy_context(), help_caller))
        _work(function, pending)
        for _ in range(len(helpers)):  # a helper that has not begun finds no items
            results.get()
        if errors:
            raise errors[0]
    except BaseException:
        pending.clear()
        while len(ended) < len(helpers):
            time.sleep(0.001)
        raise
    finally:
        errors.clear()  # breaks the cycle error → frame → errors, which holds arrays


def _work(function: Callable[[Item], None], pending: deque[Item]) -> None:
    with inline():
        while pending:
            try:
                item = pending.popleft()
            except IndexError:  # another thread took the last item
                return
            function(item)


def is_inline() -> bool:
    """Tell whether parallel_for uses only the calling thread."""
    return getattr(_thread, "is_inline", False)


@contextmanager
def inline() -> Iterator[None]:
    """Make parallel_for use only the calling thread during the `with` block."""
    before = is_inline()
    _thread.is_inline = True
    try:
        yield
    finally:
        _thread.is_inline = before


def even_slices(count: int, parts: int) -> list[slice]:
    """Split range(count) into at most `parts` slices of nearly equal length.

    If `count` is 0, return one empty slice.
    """
    parts = max(1, min(parts, count))
    cuts = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]


_WorkerQueue = SimpleQueue[tuple[contextvars.Context, Callable[[], None]]]


@cache
def _worker_queue() -> _WorkerQueue:
    """Return the queue of the worker threads, which the first call starts.

    Raises RuntimeError if the system's limit of threads is reached.
    """
    queue: _WorkerQueue = SimpleQueue()
    for number in range(1, thread_count()):
        # The interpreter does not wait for daemon threads at exit.
        name = f"gpt2np-{number}"
        threading.Thread(target=_run_tasks, name=name, args=(queue,), daemon=True).start()
    return queue


def _run_tasks(queue: _WorkerQueue) -> None:
    while True:
        context, task = queue.get()
        context.run(task)
        del context, task  # both hold arrays


if hasattr(os, "register_at_fork"):  # a forked child has no worker threads
    os.register_at_fork(after_in_child=_worker_queue.cache_clear)
