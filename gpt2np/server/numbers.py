"""Endpoints for single numbers: weights, nearest tokens, saliency, directions, merges."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import Target, direction, saliency
from gpt2np.interp.description import array_json
from gpt2np.interp.weights import nearest_tokens, weight_tile
from gpt2np.language_model import LanguageModel
from gpt2np.limits import limits
from gpt2np.server.engine import Engine
from gpt2np.server.protocol import DirectionRequest, MergesRequest, SaliencyRequest
from gpt2np.server.responses import Json
from gpt2np.server.threads import INSPECTION, body_schema, json_response, prepare, read_json, run_on
from gpt2np.tokenizer.training import TrainingOptions, train
from gpt2np.tokenizer.training.train import pattern_pre_tokenizer
from gpt2np.tokenizer.vocabulary import chars_to_bytes

Respond = Callable[[Request, type[Any], Callable[..., Json]], Awaitable[Response]]
Model = Annotated[str | None, Query()]
Range = Annotated[str | None, Query(pattern=r"^\d{1,9}:\d{1,9}$", description="As in 0:64.")]
_N_BYTES = 256


def add_numbers(app: FastAPI, get_engine: Callable[[str | None], Engine], respond: Respond) -> None:
    """Add the endpoints; `respond` runs a function that has passes of its own."""

    @app.get("/api/weights")
    async def get_weights(
        name: Annotated[str, Query(max_length=100)],
        model: Model = None,
        rows: Range = None,
        columns: Range = None,
        cells: Annotated[int, Query(ge=1, le=8192)] = 96,
    ) -> Response:
        """Return a tile of a weight; of a tile larger than `cells`, the strongest numbers."""
        weights = get_engine(model).lm.model.weights
        tile = await run_on(
            INSPECTION, weight_tile, weights, name, _range(rows), _range(columns), cells
        )
        return await json_response(array_json(tile, np.float32))

    @app.get("/api/nearest")
    async def get_nearest(
        id: int, model: Model = None, n: Annotated[int, Query(ge=1, le=100)] = 10
    ) -> Response:
        """Return the tokens whose embeddings point in the most similar directions."""
        return await json_response(await run_on(INSPECTION, _nearest, get_engine(model).lm, id, n))

    @app.post("/api/saliency", openapi_extra=body_schema(SaliencyRequest))
    async def get_saliency(request: Request) -> Response:
        """Attribute a token's log probability to the tokens before it (integrated gradients)."""
        return await respond(request, SaliencyRequest, _saliency)

    @app.post("/api/direction", openapi_extra=body_schema(DirectionRequest))
    async def get_direction(request: Request) -> Response:
        """Return the direction between two lists of texts, for `interventions`."""
        return await respond(request, DirectionRequest, _direction)

    @app.post("/api/merges", openapi_extra=body_schema(MergesRequest))
    async def get_merges(request: Request) -> Response:
        """Learn merges from a text, as `gpt2np train-tokenizer` does."""
        body = await read_json(request, MergesRequest)
        return await json_response(await prepare(learned_merges, body.text, body.n))


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, stop = map(int, text.split(":"))
    return start, stop


def _nearest(lm: LanguageModel, token_id: int, n: int) -> Json:
    if not 0 <= token_id < lm.model.config.vocab_size:
        raise InvalidArgumentError(f"id must be below {lm.model.config.vocab_size}")
    ids, cosines = nearest_tokens(lm.model.weights["wte.weight"], [token_id], n)
    return {"id": token_id, "ids": ids[0].tolist(), "cosines": cosines[0].tolist()}


def _saliency(lm: LanguageModel, body: SaliencyRequest) -> Json:
    most = limits().max_saliency_tokens
    if not 0 < len(body.prompt) <= most:
        raise InvalidArgumentError(
            f"prompt has {len(body.prompt):,} tokens; saliency needs 1 to {most:,}"
        )
    found = saliency(lm, body.prompt, Target(body.token), steps=body.steps)
    return {"values": found.values.tolist(), "value": found.value, "baseline": found.baseline}


def _direction(lm: LanguageModel, body: DirectionRequest) -> Json:
    found = direction(lm, body.texts_a, body.texts_b, body.point)
    return {"point": found.point, "vector": array_json(found.vector.reshape(-1), np.float32)}


def learned_merges(text: str, n: int) -> Json:
    """Learn up to `n` merges of bytes; return them by rank, with the text's pieces in order.

    Both sides of a merge are bytes in base64.
    """
    options = TrainingOptions(vocab_size=_N_BYTES + n, min_frequency=2, special_tokens=())
    merges = train([text], options).merges
    return {
        "merges": [[_base64(left), _base64(right)] for left, right in merges],
        "pieces": list(pattern_pre_tokenizer(options.pattern)(text)),
    }


def _base64(token: str) -> str:
    return base64.b64encode(chars_to_bytes(token)).decode("ascii")
