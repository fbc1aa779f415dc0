"""A function applied to one item after another, in this process or in several."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import connection, parent_process
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items that wait for each process, so that none is idle; more would only take memory
_function: Callable[[Any], Any] | None = None  # a worker's own


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[tuple[Item, Result]]:
    """Each of `items` with what `function` gives for it, in order.

    Items are taken only a few ahead, unlike by `Executor.map`. `function` goes to each process
    once, so it may carry what takes long to prepare.

    Raises:
        concurrent.futures.BrokenExecutor: a process was killed.
    """
    if processes == 1:
        yield from ((item, function(item)) for item in items)
        return
    pool = ProcessPoolExecutor(processes, initializer=_start, initargs=(function,))
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(_call, item)))
            if len(waiting) > _AHEAD * processes:
                first, future = waiting.popleft()
                yield first, future.result()
        yield from ((item, future.result()) for item, future in waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed can't end its workers, and they would wait for work for ever."""
    if parent := parent_process():
        connection.wait([parent.sentinel])
        os._exit(1)


def _call(item: Any) -> Any:
    assert _function is not None
    return _function(item)
