"""Ordered parallel map over worker processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import connection, parent_process
from threading import Thread
from typing import Any, TypeVar

from gpt2np.errors import GPT2NPError, check_argument, is_integer

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUEUED_PER_PROCESS = 2  # items that keep every process busy; more would only take memory
_MAX_PROCESSES_PER_CPU = 8
_function: Callable[[Any], Any] | None = None  # set in worker processes only


def check_processes(processes: int) -> None:
    """Raise InvalidArgumentError if `processes` is less than 1, or would overload the machine."""
    limit = _MAX_PROCESSES_PER_CPU * (os.cpu_count() or 1)
    is_valid = is_integer(processes) and 1 <= processes <= limit
    expected = f"at least 1 and at most {limit}, {_MAX_PROCESSES_PER_CPU} per CPU"
    check_argument(is_valid, "processes", processes, expected)


def map_here(
    make_function: Callable[[], Callable[[Item], Result]], items: Iterable[Item]
) -> Iterator[tuple[Item, Result]]:
    """Call a function in this process; yield (item, result) in the order of `items`."""
    function = make_function()
    return ((item, function(item)) for item in items)


def map_in_order(
    make_function: Callable[[], Callable[[Item], Result]], items: Iterable[Item], processes: int
) -> Iterator[tuple[Item, Result]]:
    """Call a function in worker processes; yield (item, result) in the order of `items`.

    Only a few items are read ahead, unlike in `Executor.map`. `make_function` is called once in
    each process. With `processes` = 1, no worker process is started.

    Raises GPT2NPError if a worker process dies.
    """
    if processes == 1:
        yield from map_here(make_function, items)
        return
    pool = ProcessPoolExecutor(processes, initializer=_init_worker, initargs=(make_function,))
    queue: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            queue.append((item, pool.submit(_call, item)))
            if len(queue) > _QUEUED_PER_PROCESS * processes:
                first, future = queue.popleft()
                yield first, future.result()
        yield from ((item, future.result()) for item, future in queue)
    except BrokenExecutor as error:
        raise GPT2NPError(
            "a worker process died, perhaps out of memory; try fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _init_worker(make_function: Callable[[], Callable[[Any], Any]]) -> None:
    global _function
    _function = make_function()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the worker
    Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process dies, because a killed parent can't end its workers."""
    if parent := parent_process():
        connection.wait([parent.sentinel])
        os._exit(1)


def _call(item: Any) -> Any:
    assert _function is not None
    return _function(item)
