"""The endpoints under /api: what happens inside the model for one text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.explain import explain
from gpt2np.explain.block import active_neurons
from gpt2np.explain.markup import array_json
from gpt2np.explain.run import MAX_TOKENS
from gpt2np.generation import next_probabilities
from gpt2np.generation.logits_processors import check_finite
from gpt2np.generation.sampling import log_softmax
from gpt2np.interp import Trace, add, attribution, hook_points_nbytes, logit_lens, scale, trace
from gpt2np.interp.lens import RESIDUALS, top_k
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.limits import limits
from gpt2np.model.ops import softmax
from gpt2np.server.engine import Engine
from gpt2np.server.protocol import ExplainRequest, InspectRequest
from gpt2np.server.responses import Json
from gpt2np.server.threads import INSPECTION, body_schema, json_response, prepare, read_json, run_on

T = TypeVar("T")
_POINTS = (*RESIDUALS, "blocks.*.attn.z", "blocks.*.mlp.out")
_N_NEURONS = 5  # of each block
_N_PROMOTED = 5  # tokens that a neuron makes more likely


def add_inspection(app: FastAPI, get_engine: Callable[[str | None], Engine]) -> None:
    """Add the endpoints; `get_engine` returns the engine of a model's name."""
    lock = asyncio.Lock()  # one inspection at a time: each has a pass of its own

    async def compute(request: Request, engine: Engine, function: Callable[[], T]) -> T:
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

    @app.get("/api/model")
    async def describe_model(model: str | None = None) -> Response:
        """Describe a model: its sizes, and the bytes of each token in base64."""
        return await json_response(await prepare(_describe, get_engine(model).lm))

    @app.post("/api/inspect", openapi_extra=body_schema(InspectRequest))
    async def inspect_text(request: Request) -> Response:
        """Show how the model predicts the token after a text.

        The points of `interventions` are those of the documentation's page "Hook points".
        """
        body = await read_json(request, InspectRequest)
        engine = get_engine(body.model)
        result = await compute(request, engine, lambda: inspect(engine.lm, body))
        return await json_response(result)

    extra = body_schema(ExplainRequest)

    @app.post("/api/explain", response_class=HTMLResponse, openapi_extra=extra)
    async def explain_text(request: Request) -> HTMLResponse:
        """Return the page of `gpt2np explain` for a text."""
        body = await read_json(request, ExplainRequest)
        engine = get_engine(body.model)
        window = slice(*body.window) if body.window else None
        page = await compute(
            request,
            engine,
            lambda: explain(
                engine.lm,
                body.prompt,
                window=window,
                layer=body.layer,
                head=body.head,
                position=body.position,
                steps=body.steps,
                float64=body.float64,
            ),
        )
        return HTMLResponse(page.html)


def _describe(lm: LanguageModel) -> Json:
    config, table = lm.model.config, lm.tokenizer.vocabulary.token_bytes
    tokens = (table.get(token_id, b"[%d]" % token_id) for token_id in range(config.vocab_size))
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
    last_rows: dict[str, Array] = {}

    def keep_last_row(name: str, array: Array) -> Array:  # the whole arrays can take gigabytes
        if name.endswith((".attn.pattern", ".mlp.act")):
            last_rows[name] = array[..., -1, :].copy()
        return array

    hooks = [
        scale(each.point, each.factor, positions=each.positions, heads=each.heads)
        if each.vector is None
        else add(each.point, each.vector, positions=each.positions, heads=each.heads)
        for each in body.interventions
    ]
    points = [*_POINTS, *body.points]
    with np.errstate(all="ignore"):  # check_finite raises an error instead
        traced = trace(lm, ids, points, interventions=[*hooks, keep_last_row])
        residuals = np.stack([traced[name][-1] for name in traced.require(RESIDUALS)])
        logits = logit_lens(lm, residuals)  # (layers + 1, V)
    check_finite(logits, lm.model)
    probabilities = softmax(logits)
    likeliest = top_k(logits[-1], min(2, logits.shape[-1])).tolist()
    followed = list(dict.fromkeys([*(body.tokens or []), *likeliest]))
    result: Json = {
        "model": lm.name,
        "ids": list(ids),
        "tokens": followed,
        **_next_tokens(logits[-1], followed, body),
    }
    layers = range(lm.model.config.n_layer)
    if "lens" in body.include:
        result["lens"] = _lens(traced.require(RESIDUALS), probabilities, followed, body.n)
    if "attention" in body.include:
        rows = [last_rows[f"blocks.{i}.attn.pattern"] for i in layers]
        result["attention"] = array_json(np.stack(rows))
    if "neurons" in body.include:
        result["neurons"] = _neurons(lm, [last_rows[f"blocks.{i}.mlp.act"] for i in layers])
    if "attribution" in body.include:
        result["attribution"] = _attribution(lm, traced, followed)
    if body.points:
        names = traced.require(body.points)
        result["points"] = {name: array_json(traced[name]) for name in names}
    return result


def _check(lm: LanguageModel, ids: Sequence[int], body: InspectRequest) -> None:
    config = lm.model.config
    if not ids:
        raise InvalidArgumentError("the prompt is empty; give at least one token")
    if len(ids) > config.n_positions:
        raise ContextLengthError(
            f"the prompt has {len(ids):,} tokens, more than the model's context of "
            f"{config.n_positions:,}"
        )
    if max(body.tokens or [0]) >= config.vocab_size or body.n > config.vocab_size:
        raise InvalidArgumentError(f"tokens and n must be below {config.vocab_size}")
    if not body.points:
        return
    size = hook_points_nbytes(config, len(ids), body.points, lm.model.dtype)
    if size > limits().max_inspected_bytes:
        raise InvalidArgumentError(
            f"points: these activations have {size:,} bytes, more than the limit of "
            f"{limits().max_inspected_bytes:,}; select fewer points, or use gpt2np.trace"
        )


def _next_tokens(logits: Array, followed: Sequence[int], body: InspectRequest) -> Json:
    """Return the likely next tokens with their probabilities before and after the filters."""
    logprobs, sampled = log_softmax(logits), next_probabilities(logits, body.sampling_options())
    listed = dict.fromkeys([*top_k(logits, body.n).tolist(), *followed])
    is_kept = sampled > 0
    return {
        "next": [
            {"id": i, "logprob": float(logprobs[i]), "sampled": float(sampled[i])} for i in listed
        ],
        "kept": {
            "count": int(is_kept.sum()),
            "probability": float(np.exp(logprobs[is_kept]).sum()),
        },
    }


def _lens(
    names: Sequence[str], probabilities: Array, followed: Sequence[int], n: int
) -> list[Json]:
    """Return the logit lens at each residual: the likely tokens, and the followed tokens."""
    ids = top_k(probabilities, n)
    top = np.take_along_axis(probabilities, ids, -1)
    return [
        {
            "point": name,
            "ids": ids[k].tolist(),
            "probabilities": top[k].tolist(),
            "followed": row[followed].tolist(),
            "ranks": [int((row > row[i]).sum()) + 1 for i in followed],
        }
        for k, (name, row) in enumerate(zip(names, probabilities, strict=True))
    ]


def _neurons(lm: LanguageModel, activations: Sequence[Array]) -> list[list[Json]]:
    """Return each block's most active neurons, and the tokens that each makes more likely."""
    blocks, written = [], []
    for layer, activation in enumerate(activations):
        output = lm.model.weights[f"h.{layer}.mlp.c_proj.weight"]
        neurons, lengths = active_neurons(activation, output, _N_NEURONS)
        written.append(output[neurons] * np.sign(activation[neurons])[:, None])
        blocks.append(zip(neurons, activation[neurons], lengths, strict=True))
    # Reading the embedding takes most of the time, so all blocks share one product.
    promoted = iter(top_k(lm.model.unembed(np.concatenate(written)), _N_PROMOTED))
    return [
        [
            {
                "neuron": int(neuron),
                "activation": float(activation),
                "length": float(length),
                "raises": next(promoted).tolist(),
            }
            for neuron, activation, length in block
        ]
        for block in blocks
    ]


def _attribution(lm: LanguageModel, traced: Trace, followed: Sequence[int]) -> Json:
    split = attribution(lm, traced, followed)
    return {
        "components": list(split.components),
        "values": split.values.tolist(),
        "logits": split.logits.tolist(),
    }
