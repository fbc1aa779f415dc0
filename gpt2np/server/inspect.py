"""The endpoints under /api: what happens inside the model."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gpt2np.errors import InvalidArgumentError, errors_about
from gpt2np.interp import Target, saliency
from gpt2np.interp.description import array_json, describe_pass, describe_token, record_pass
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.model.hook_points import hook_point_shape, select_hook_points
from gpt2np.runtime.arguments import check_ids, check_prompt_length
from gpt2np.runtime.context import Hook
from gpt2np.server.engine import INSPECTION, PREPARATION, Engine, answer, run_on
from gpt2np.server.protocol import InspectRequest, SaliencyRequest, hooks_of
from gpt2np.server.replies import Json
from gpt2np.tokenizer.vocabulary import token_bytes

_MAX_BYTES = 16 << 20  # of the activations of a reply

B = TypeVar("B")  # the body of a request
T = TypeVar("T")


def add_inspection(app: FastAPI, get_engine: Callable[[str | None], Engine]) -> None:
    """Add the endpoints; `get_engine` returns the engine of a model's name."""

    @app.post("/api/inspect")
    async def inspect_text(request: Request, body: InspectRequest) -> Response:
        """Show how the model predicts the token after a text.

        The points of `interventions` are those of the documentation's page "Hook points".
        """
        engine = get_engine(body.model)
        return JSONResponse(await _run(request, engine, inspect, body))

    @app.post("/api/saliency")
    async def get_saliency(request: Request, body: SaliencyRequest) -> Response:
        """Attribute a token's log probability to the tokens before it (integrated gradients)."""
        engine = get_engine(body.model)
        return JSONResponse(await _run(request, engine, _saliency, body))

    @app.get("/api/model")
    async def describe_model(model: str | None = None) -> Response:
        """Describe a model: its sizes, and the bytes of each token in base64."""
        return JSONResponse(await run_on(PREPARATION, _describe, get_engine(model).lm))

    @app.get("/api/token")
    async def get_token(id: int, model: str | None = None) -> Response:
        """Describe a token: its embedding, the nearest embeddings, and the merges of its bytes."""
        lm = get_engine(model).lm
        check_ids("id", [id], lm.model.config.vocab_size)
        return JSONResponse(await run_on(INSPECTION, describe_token, lm, id))


async def _run(
    request: Request, engine: Engine, function: Callable[[LanguageModel, B, Hook], T], body: B
) -> T:
    """Call a function that runs passes; it counts as one sequence in the engine's queue.

    If the client disconnects, the hook that the function gets raises an error at its next call.
    """
    running = engine.start(1)
    call = run_on(INSPECTION, function, engine.lm, body, running.stop_at_end)
    try:
        return await answer(request, call, engine.options.timeout)
    finally:
        engine.end(running)


def inspect(lm: LanguageModel, body: InspectRequest, *hooks: Hook) -> Json:
    """Run the model on a text and describe how it predicts the next token.

    `hooks` are called before those of the request's interventions.
    """
    ids = lm.encode_prompt(body.prompt) if isinstance(body.prompt, str) else body.prompt
    _check_prompt(lm, ids)
    check_ids("tokens", body.tokens or (), lm.model.config.vocab_size)
    names = _select_points(lm, len(ids), body)
    rows: dict[str, Array] = {}

    def keep(name: str, array: Array) -> Array:
        if name in names:
            rows[name] = array[..., -(body.n_rows or len(ids)) :, :].copy()
        return array

    hooks = (*hooks, *hooks_of(body.interventions, lm.model.config), keep)
    with np.errstate(all="ignore"), errors_about("interventions"):  # check_finite raises an error
        traced = record_pass(lm, ids, hooks)
    result = describe_pass(
        lm,
        traced,
        sampling=body.sampling_options(),
        tokens=body.tokens or (),
        n=body.n,
        include=body.include,
        seed=body.seed,
        n_drawn=body.n_drawn,
    )
    if rows:
        result["points"] = {name: array_json(array) for name, array in rows.items()}
    return result


def _check_prompt(lm: LanguageModel, ids: Sequence[int]) -> None:
    check_ids("prompt", ids, lm.model.config.vocab_size)
    with errors_about("prompt"):
        check_prompt_length(len(ids), lm.model.config)


def _select_points(lm: LanguageModel, n_tokens: int, body: InspectRequest) -> list[str]:
    """Return the names of the requested hook points, if their rows are not too large."""
    config = lm.model.config
    with errors_about("points"):
        names = select_hook_points(body.points, config.n_layer)
    n_numbers = sum(math.prod(hook_point_shape(name, config, n_tokens)) for name in names)
    size = n_numbers * lm.model.dtype.itemsize * min(body.n_rows or n_tokens, n_tokens) // n_tokens
    if size > _MAX_BYTES:
        raise InvalidArgumentError(
            f"points: these activations have {size:,} bytes, more than the limit of "
            f"{_MAX_BYTES:,}; select fewer points, or use gpt2np.trace",
            param="points",
        )
    return names


def _saliency(lm: LanguageModel, body: SaliencyRequest, hook: Hook) -> Json:
    _check_prompt(lm, body.prompt)
    check_ids("token", [body.token], lm.model.config.vocab_size)
    hooks: list[Hook] = [hook, *hooks_of(body.interventions, lm.model.config)]
    target = Target(body.token)
    with errors_about("interventions"):
        found = saliency(lm, body.prompt, target, steps=body.steps, interventions=hooks)
    return {"values": found.values.tolist(), "value": found.value, "baseline": found.baseline}


def _describe(lm: LanguageModel) -> Json:
    config, table = lm.model.config, lm.tokenizer.vocabulary.token_bytes
    tokens = token_bytes(range(config.vocab_size), table)
    return {
        "id": lm.name,
        "n_positions": config.n_positions,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "vocab_size": config.vocab_size,
        "empty_prompt_ids": lm.encode_prompt(""),
        "eos_token_ids": list(config.eos_token_ids),
        "tokens": [base64.b64encode(token).decode("ascii") for token in tokens],
    }
