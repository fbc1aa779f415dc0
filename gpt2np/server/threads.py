"""Threads for work that would stall the event loop, and requests and responses that need them.

Each kind of work has one thread, on which requests take turns. A call that still waits when its
request is cancelled is never made.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpt2np.interrupts import no_garbage_collection
from gpt2np.server.responses import Json, json_pieces

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

BEAM_SEARCH = ThreadPoolExecutor(1, "gpt2np-beams")
CONSTRAINTS = ThreadPoolExecutor(1, "gpt2np-constraints")
CHAT_TEMPLATES = ThreadPoolExecutor(1, "gpt2np-templates")
INSPECTION = ThreadPoolExecutor(1, "gpt2np-inspection")
PREPARATION = ThreadPoolExecutor(1, "gpt2np-preparation")


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


async def read_json(request: Request, model: type[M]) -> M:
    """Read and validate the body of a request, or raise pydantic's ValidationError."""
    return await prepare(_validate, model, await request.body())


def _validate(model: type[M], body: bytes) -> M:
    """Validate a body; skip a byte order mark, with which some editors begin a file."""
    body = body.removeprefix(codecs.BOM_UTF8)
    with no_garbage_collection():  # a body may have 200,000 lists
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
                _name_lone_surrogate(model, body)
            raise


def _name_lone_surrogate(model: type[BaseModel], body: bytes) -> None:
    """Raise the ValidationError of a field with a lone surrogate, if there is such a field.

    To pydantic's parser, a lone surrogate is a syntax error without a field. Python's parser
    accepts lone surrogates.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return
    with suppress(RecursionError):
        model.model_validate(fields)


async def json_response(body: Json) -> Response:
    """Return a response with a JSON object."""
    data = await prepare(lambda: b"".join(json_pieces(body)))
    return Response(data, media_type="application/json")


def body_schema(model: type[BaseModel]) -> Json:
    """Return the description of an endpoint that calls `read_json`, for OpenAPI."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}
