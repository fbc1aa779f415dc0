"""Python threads that share a computation.

This module does not import NumPy, because BLAS reads its thread count when NumPy is imported.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from gpt2np.errors import check_argument
from gpt2np.kernels.cpus import usable_cpus

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

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
    if threads == 1 or len(items) <= 1 or is_inline():
        for item in items:
            function(item)
        return
    pending, errors = deque(items), list[BaseException]()
    futures: list[Future[None]] = []
    work = partial(_work, function, pending, errors)
    try:
        try:
            for _ in range(min(threads, len(items)) - 1):
                futures.append(_pool().submit(contextvars.copy_context().run, work))
        except RuntimeError:  # no thread can be started: this thread does the work
            _pool.cache_clear()
        work()
        _join(futures)
    except BaseException:
        pending.clear()
        _join(futures)
        raise
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # breaks the cycle error → frame → errors, which holds arrays


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


def _work(
    function: Callable[[Item], None], pending: deque[Item], errors: list[BaseException]
) -> None:
    """Process pending items on one of the threads that share them."""
    with inline():
        while pending:
            try:
                item = pending.popleft()
            except IndexError:  # another thread took the last item
                return
            try:
                function(item)
            except KeyboardInterrupt as error:
                pending.clear()
                errors.insert(0, error)
            except BaseException as error:
                errors.append(error)


def _join(futures: Sequence[Future[None]]) -> None:
    """Cancel the futures that have not begun; wait for the others."""
    for future in futures:
        if not future.cancel():
            future.exception()


@cache
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # not every program needs threads

    return ThreadPoolExecutor(max(1, thread_count() - 1), "gpt2np")


if hasattr(os, "register_at_fork"):  # a forked child has no worker threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
