"""The endpoints under /api: what happens inside the model for one text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from gpt2np.errors import InvalidArgumentError
from gpt2np.explain import explain
from gpt2np.explain.run import MAX_TOKENS
from gpt2np.interp import hook_points_nbytes, trace
from gpt2np.interp.description import array_json, describe_pass, record_pass
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.limits import limits
from gpt2np.model.hook_points import select_hook_points
from gpt2np.runtime.arguments import check_prompt_length
from gpt2np.runtime.hooked_context import Hook
from gpt2np.server.engine import Engine
from gpt2np.server.interventions import hooks_of
from gpt2np.server.numbers import add_numbers
from gpt2np.server.protocol import ExplainRequest, InspectRequest
from gpt2np.server.responses import Json
from gpt2np.server.threads import INSPECTION, body_schema, json_response, prepare, read_json, run_on
from gpt2np.tokenizer.vocabulary import token_bytes

T = TypeVar("T")


def add_inspection(app: FastAPI, get_engine: Callable[[str | None], Engine]) -> None:
    """Add the endpoints; `get_engine` returns the engine of a model's name."""
    lock = asyncio.Lock()  # one inspection at a time: each has a pass of its own

    async def respond(
        request: Request, model: type[Any], describe: Callable[..., Json]
    ) -> Response:
        """Return `describe(lm, body)` for a request whose body is a `model`."""
        body = await read_json(request, model)
        engine = get_engine(body.model)
        run = partial(describe, engine.lm, body)
        return await json_response(await _compute(lock, request, engine, run))

    add_numbers(app, get_engine, respond)

    @app.get("/api/model")
    async def describe_model(model: str | None = None) -> Response:
        """Describe a model: its sizes, and the bytes of each token in base64."""
        return await json_response(await prepare(_describe, get_engine(model).lm))

    @app.post("/api/inspect", openapi_extra=body_schema(InspectRequest))
    async def inspect_text(request: Request) -> Response:
        """Show how the model predicts the token after a text.

        The points of `interventions` are those of the documentation's page "Hook points".
        """
        return await respond(request, InspectRequest, inspect)

    extra = body_schema(ExplainRequest)

    @app.post("/api/explain", response_class=HTMLResponse, openapi_extra=extra)
    async def explain_text(request: Request) -> HTMLResponse:
        """Return the page of `gpt2np explain` for a text."""
        body = await read_json(request, ExplainRequest)
        engine = get_engine(body.model)
        window = slice(*body.window) if body.window else None
        options = body.model_dump(exclude={"model", "prompt", "window"})
        run = partial(explain, engine.lm, body.prompt, window=window, **options)
        return HTMLResponse((await _compute(lock, request, engine, run)).html)


async def _compute(
    lock: asyncio.Lock, request: Request, engine: Engine, function: Callable[[], T]
) -> T:
    """Call a function that runs its own pass; it counts as one sequence in the engine's queue."""
    running = engine.start(1)
    try:
        async with lock:
            if await request.is_disconnected():
                raise HTTPException(499, "the client has disconnected")
            if not running.error:
                result = await run_on(INSPECTION, function)
            if running.error:
                raise running.error
            return result
    finally:
        engine.end(running)


def _describe(lm: LanguageModel) -> Json:
    config, table = lm.model.config, lm.tokenizer.vocabulary.token_bytes
    tokens = token_bytes(range(config.vocab_size), table)
    return {
        "id": lm.name,
        "facts": lm.model.facts,
        "n_positions": config.n_positions,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.n_inner,
        "vocab_size": config.vocab_size,
        "max_explained_tokens": min(MAX_TOKENS, config.n_positions),
        "empty_prompt_ids": lm.encode_prompt(""),
        "eos_token_ids": list(config.eos_token_ids),
        "tokens": [base64.b64encode(token).decode("ascii") for token in tokens],
    }


def inspect(lm: LanguageModel, body: InspectRequest) -> Json:
    """Run the model on a text and describe how it predicts the next token.

    Raises:
        InvalidArgumentError, ContextLengthError: the request is wrong.
        CheckpointError: some logits are infinite or NaN.
    """
    ids = lm.encode_prompt(body.prompt) if isinstance(body.prompt, str) else body.prompt
    _check(lm, ids, body)
    hooks = hooks_of(body.interventions, lm.model.config)
    with np.errstate(all="ignore"):  # check_finite raises an error instead
        traced = record_pass(lm, ids, hooks)
        points = _points(lm, ids, body, hooks) if body.points else {}
    result = describe_pass(
        lm,
        traced,
        sampling=body.sampling_options(),
        tokens=body.tokens or [],
        n=body.n,
        include=body.include,
        seed=body.seed,
        n_drawn=body.n_drawn,
    )
    if points:
        result["points"] = {name: array_json(array) for name, array in points.items()}
    return result


def _points(
    lm: LanguageModel, ids: Sequence[int], body: InspectRequest, hooks: Sequence[Hook]
) -> dict[str, Array]:
    """Return the last `n_rows` rows of the requested hook points' arrays."""
    names = select_hook_points(body.points, lm.model.config.n_layer)
    rows: dict[str, Array] = {}

    def keep(name: str, array: Array) -> Array:
        if name in names:
            rows[name] = array[..., -(body.n_rows or len(ids)) :, :].copy()
        return array

    trace(lm, ids, names[-1], interventions=[*hooks, keep])
    return rows


def _check(lm: LanguageModel, ids: Sequence[int], body: InspectRequest) -> None:
    config = lm.model.config
    if not ids:
        raise InvalidArgumentError("the prompt is empty; give at least one token")
    check_prompt_length(len(ids), config)
    if not body.points:
        return
    size = hook_points_nbytes(config, len(ids), body.points, lm.model.dtype)
    size = size * min(body.n_rows or len(ids), len(ids)) // len(ids)
    if size > limits().max_inspected_bytes:
        raise InvalidArgumentError(
            f"points: these activations have {size:,} bytes, more than the limit of "
            f"{limits().max_inspected_bytes:,}; select fewer points, or use gpt2np.trace"
        )
