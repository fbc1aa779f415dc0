"""Python threads that share a computation.

This module does not import NumPy, because BLAS reads its thread count when NumPy is imported.
"""

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gpt2np.errors import check_argument
from gpt2np.kernels.cpus import usable_cpus

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Item = TypeVar("Item")
_thread = threading.local()  # .is_inline: whether parallel_for uses only the calling thread


def set_threads(threads: int | None) -> None:
    """Set the environment variables from which BLAS takes its thread count.

    Call this before NumPy is imported, because BLAS reads the variables then. If `threads` is None,
    the variables stay unchanged.

    Raises:
        InvalidArgumentError: `threads` is less than 1.
    """
    if threads is None:
        return
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

    Raises an exception of `function`, if any, after all calls have ended. KeyboardInterrupt drops
    the pending items.
    """
    queue = None if threads == 1 or len(items) <= 1 or is_inline() else _worker_queue()
    if queue is None:
        for item in items:
            function(item)
        return
    task = _Task(function, items)
    try:
        for _ in range(min(threads, len(items)) - 1):
            queue.put((contextvars.copy_context(), task.help))
        errors = task.run()
        while len(errors) < len(items):
            errors.append(task.outcomes.get())
    except BaseException:
        task.abandon()
        raise
    try:
        for error in errors:
            if error is not None:
                raise error
    finally:
        del errors  # break the reference cycle error → frame → errors, which holds arrays


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


class _Task:
    """The items of one parallel_for call, which any thread may process."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self.function = function
        self.pending = deque(items)
        self.in_progress: list[None] = []  # one entry for each item that a worker runs
        self.outcomes: SimpleQueue[BaseException | None] = SimpleQueue()  # one per item of a worker

    def run(self) -> list[BaseException | None]:
        """Process pending items on the calling thread. Returns each item's exception, or None."""
        outcomes = []
        with suppress(IndexError):
            while True:
                outcomes.append(self.outcome(self.pending.popleft()))
                if isinstance(outcomes[-1], KeyboardInterrupt):
                    raise outcomes[-1]
        return outcomes

    def help(self) -> None:
        """Process pending items on a worker thread; add exceptions or None to `outcomes`."""
        while self.pending:
            self.in_progress.append(None)  # before taking the item, so that `abandon` waits
            try:
                item = self.pending.popleft()
            except IndexError:
                self.in_progress.pop()
                return
            self.outcomes.put(self.outcome(item))
            self.in_progress.pop()

    def outcome(self, item: Any) -> BaseException | None:
        try:
            with inline():
                self.function(item)
        except BaseException as error:
            return error
        return None

    def abandon(self) -> None:
        """Drop the pending items, and wait until worker threads finish the items in progress."""
        self.pending.clear()
        while self.in_progress:
            with suppress(Empty):
                self.outcomes.get(timeout=0.05)


_WorkerQueue = SimpleQueue[tuple[contextvars.Context, Callable[[], None]]]
_lock = threading.Lock()
_queue: _WorkerQueue | None = None


def _worker_queue() -> _WorkerQueue | None:
    """Return the queue from which worker threads take tasks; the first call starts the threads.

    Returns None if no thread can be started.
    """
    global _queue
    with _lock:
        if _queue is None:
            queue: _WorkerQueue = SimpleQueue()
            for number in range(1, thread_count()):
                # The interpreter does not wait for daemon threads at exit.
                name = f"gpt2np-{number}"
                thread = threading.Thread(target=_work, name=name, args=(queue,), daemon=True)
                with suppress(RuntimeError):  # the system's limit of threads is reached
                    thread.start()
                    _queue = queue
        return _queue


def _work(queue: _WorkerQueue) -> None:
    while True:
        context, task = queue.get()
        context.run(task)
        del context, task  # both hold arrays


def _forget_workers() -> None:
    global _lock, _queue
    _lock, _queue = threading.Lock(), None


if hasattr(os, "register_at_fork"):  # a forked child has no worker threads
    os.register_at_fork(after_in_child=_forget_workers)
