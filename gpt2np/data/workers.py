"""Ordered parallel map over worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, TypeVar

from gpt2np.errors import GPT2NPError

Item = TypeVar("Item")
Result = TypeVar("Result")


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

    Each process calls `make_function` once, and has one item at a time. With `processes` = 1, no
    worker process is started.

    Raises GPT2NPError if a worker process dies or can't be started.
    """
    if processes == 1:
        yield from map_here(make_function, items)
        return
    workers: list[BaseProcess] = []
    queue: deque[tuple[Item, Connection]] = deque()
    try:
        free = deque(_start(make_function, workers) for _ in range(processes))
        for item in items:
            finished = None
            if not free:
                first, connection = queue.popleft()
                finished = first, _receive(connection)
                free.append(connection)
            free[0].send(item)
            queue.append((item, free.popleft()))
            if finished:
                yield finished
        yield from ((item, _receive(connection)) for item, connection in queue)
    except (EOFError, OSError, MemoryError) as error:
        raise GPT2NPError(
            "a worker process died, perhaps out of memory; try fewer processes"
        ) from error
    finally:
        for worker in workers:
            worker.terminate()


def _start(make_function: Callable[[], Any], workers: list[BaseProcess]) -> Connection:
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=_work, args=(make_function, theirs), daemon=True)
    worker.start()
    workers.append(worker)
    theirs.close()
    return ours


def _receive(connection: Connection) -> Any:
    result, error = connection.recv()
    if error is not None:
        raise error
    return result


def _work(make_function: Callable[[], Callable[[Any], Any]], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the worker
    try:
        Thread(target=_exit_with_parent, daemon=True).start()
        function = make_function()
    except (MemoryError, RuntimeError):  # no memory for a thread
        return
    while True:
        item = connection.recv()
        try:
            answer: tuple[Any, Exception | None] = function(item), None
        except Exception as error:
            answer = None, error
        connection.send(answer)


def _exit_with_parent() -> None:
    """Exit when the parent process dies, because a killed parent can't end its workers."""
    if parent := parent_process():
        wait([parent.sentinel])
        os._exit(1)
