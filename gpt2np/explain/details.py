"""The fields that the explain page adds to the description of a pass.

The documentation's page "The description of a pass" lists them. For the shape letters, see
`gpt2np.explain.run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict

import numpy as np

from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.explain.measure import measure_parts, measure_precision, measure_steps
from gpt2np.explain.pieces import describe_text
from gpt2np.explain.run import Run
from gpt2np.interp.description import Json, array_json, describe_neurons
from gpt2np.interp.lens import top_k
from gpt2np.interp.weights import nearest_tokens

_N_NEAREST = 6
_N_NEURONS = 10
_N_LISTED = 20  # next tokens
_POINTS = ("attn.q", "attn.k", "attn.v", "attn.z", "ln_2", "mlp.act")
_MAX_PAGE_BYTES = 1 << 21  # if the arrays of all blocks take more, a page has those of one block

OnProgress = Callable[[str], None]

PARTS = ("text", "embedding", "block", "tokens", "generation", "parameters", "time", "float64")
"""The parts of `describe_details` that are reported to `on_progress`."""


def describe_details(run: Run, steps: int, float64: bool, on_progress: OnProgress) -> Json:
    """Describe what the explain page shows besides the pass; see `gpt2np.explain.explain`."""
    builders: tuple[Callable[[], Json], ...] = (
        lambda: describe_text(run),
        lambda: _embedding(run),
        lambda: _block(run),
        lambda: _next_token(run),
        lambda: {"steps": measure_steps(run, steps)},
        lambda: _tensors(run),
        lambda: {"time": measure_parts(run)},
        lambda: {"precision": measure_precision(run) if float64 else None},
    )
    details: Json = {"focus": asdict(run.focus), "facts": run.model.facts}
    for name, build in zip(PARTS, builders, strict=True):
        on_progress(name)
        details |= build()
    return details


def described_layers(run: Run) -> range:
    """Return the blocks whose arrays and weights the page holds: all, or one if they are large."""
    layers = range(run.config.n_layer)
    arrays = (run.arrays[f"blocks.{i}.{point}"] for i in layers for point in _POINTS)
    one = range(run.focus.layer, run.focus.layer + 1)
    return layers if sum(array.nbytes for array in arrays) <= _MAX_PAGE_BYTES else one


def describe_points(run: Run) -> Json:
    """Return the arrays that the picture needs when zoomed in."""
    layers = described_layers(run)
    names = [f"blocks.{i}.{point}" for i in layers for point in _POINTS]
    names += [f"blocks.{i - 1}.resid" if i else "embed" for i in layers]
    return {name: array_json(run.arrays[name]) for name in names}


def named_ids(details: Json) -> Iterable[int]:
    """Return the ids of the tokens that `details` names besides those of the prompt."""
    nested = (details["nearest"]["ids"], details["steps"]["ids"], [details["likely"]])
    ids = {i for rows in nested for row in rows for i in row}
    return ids | {i for block in details["neurons"] for each in block for i in each["raises"]}


def _embedding(run: Run) -> Json:
    weights = run.model.weights
    nearest, cosines = nearest_tokens(weights["wte.weight"], run.ids, _N_NEAREST)
    return {
        "wte": array_json(weights["wte.weight"][run.ids]),
        "wpe": array_json(weights["wpe.weight"][: len(run.ids)]),
        "nearest": {"ids": nearest.tolist(), "cosines": array_json(cosines)},
    }


def _block(run: Run) -> Json:
    """Describe layer norms of all blocks, and the neurons that write most at one position."""
    config, weights = run.config, run.model.weights
    layers = range(config.n_layer)

    def norm(part: str) -> Json:
        return array_json(np.stack([weights[f"h.{i}.ln_1.{part}"] for i in layers]))

    acts = np.stack([run.arrays[f"blocks.{i}.mlp.act"][run.focus.position] for i in layers])
    neurons = describe_neurons(run.lm, acts, _N_NEURONS)
    residuals = np.stack([run.residual(layer) for layer in range(config.n_layer + 1)])
    return {
        "norm": {"weight": norm("weight"), "bias": norm("bias")},
        "neurons": neurons,
        "weights": {i: _neuron_weights(run, i, neurons[i]) for i in described_layers(run)},
        "lengths": array_json(np.sqrt(np.einsum("lnc,lnc->ln", residuals, residuals))),
    }


def _neuron_weights(run: Run, layer: int, neurons: list[Json]) -> Json:
    """Return the input weights (n, C), biases (n,) and output weights (n, C) of some neurons."""
    weights, ids = run.model.weights, [each["neuron"] for each in neurons]
    return {
        "input": array_json(weights[f"h.{layer}.mlp.c_fc.weight"][:, ids].T),
        "bias": array_json(weights[f"h.{layer}.mlp.c_fc.bias"][ids]),
        "output": array_json(weights[f"h.{layer}.mlp.c_proj.weight"][ids]),
    }


def _next_token(run: Run) -> Json:
    logits = run.arrays["logits"][run.focus.position]
    likely = top_k(logits, min(_N_LISTED, len(logits)))
    return {"logits": array_json(logits), "likely": likely.tolist()}


def _tensors(run: Run) -> Json:
    weights, shapes = run.model.weights, weight_shapes(run.config)
    shapes |= {LM_HEAD: shapes[WTE]} if LM_HEAD in weights else {}
    assert sum(map(math.prod, shapes.values())) == weights.parameters
    return {"tensors": {name: list(shape) for name, shape in shapes.items()}}
