"""Threads for work that would stall the event loop.

Requests take turns on each thread. A call that still waits when its request is cancelled is never
made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException

P = ParamSpec("P")
T = TypeVar("T")

PREPARATION = ThreadPoolExecutor(1, "gpt2np-preparation")
LONG_WORK = ThreadPoolExecutor(1, "gpt2np-long-work")  # constraints, chat templates, inspections


async def run_on(
    thread: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function on a thread, after the calls that wait there."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(thread, call)


async def prepare(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that takes milliseconds, such as for one prompt or one choice."""
    return await run_on(PREPARATION, function, *args, **kwargs)


async def until_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Await work, but cancel it when the client disconnects."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client has disconnected")
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
