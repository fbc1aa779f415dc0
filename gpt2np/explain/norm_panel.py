"""One row through a layer norm, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.embedding_panel import strip
from gpt2np.explain.html import formula, panel, source, table, token
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.model.ops import layer_norm

Array = NDArray[Any]

_CHANNELS = 8


def norm_steps(x: Array, weight: Array, bias: Array, epsilon: float) -> dict[str, Array]:
    """What `layer_norm` goes through for one row x (C): name → (C), or a single number."""
    mean = np.add.reduce(x) / x.dtype.type(len(x))
    centred = x - mean
    return {
        "norm.x": x,
        "norm.mean": np.asarray(mean),
        "norm.variance": np.asarray(np.add.reduce(centred * centred) / x.dtype.type(len(x))),
        "norm.centred": centred,
        "norm.normalised": layer_norm(x, np.ones_like(x), np.zeros_like(x), epsilon),
        "norm.weight": weight,
        "norm.bias": bias,
        "norm.out": layer_norm(x, weight, bias, epsilon),
    }


def norm_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    focus, w = run.focus, run.model.weights
    name = f"h.{focus.layer}.ln_1"
    x = run.residual(focus.layer)[focus.position]
    epsilon = run.config.layer_norm_epsilon
    steps = norm_steps(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)
    for part, array in steps.items():
        numbers.add(part, array)
    drawn = {
        "norm.x": "x: the residual stream, as it comes in",
        "norm.normalised": "x̂: its mean taken away, divided by its spread",
        "norm.out": "y: scaled and shifted, channel by channel",
    }
    for part in drawn:
        numbers.add(f"{part}.row", steps[part][None], carry=True)
    says = (
        f"Before attention looks at it, each token’s row of {len(x)} numbers is brought to mean 0 "
        "and variance 1, and then every channel is scaled and shifted by two learned numbers. "
        f"Here is that of token {focus.position}, "
        f"{token(run.bytes_of(run.ids[focus.position]))}, in block {focus.layer}: the channels "
        "with the largest numbers, and below them all."
    )
    body = [
        formula("x̂ = (x − μ) / √(σ² + ε)      y = x̂ · weight + bias"),
        source(layer_norm, norm_steps),
        f'<p class="facts">mean μ = {numbers.show("norm.mean", as_="5g")} &emsp; variance σ² = '
        f"{numbers.show('norm.variance', as_='5g')} &emsp; ε = {epsilon:g}</p>",
        _channels(numbers, x),
        *(strip(f"{part}.row", title, steps[part][None], "row") for part, title in drawn.items()),
    ]
    return panel("norm", "Layer norm, for one token", says, "\n".join(body), level=3)


def _channels(numbers: Numbers, x: Array) -> str:
    largest = np.sort(np.argsort(-np.abs(x), kind="stable")[:_CHANNELS])
    parts = ("x", "centred", "normalised", "weight", "bias", "out")
    rows = [
        (str(channel), *(numbers.show(f"norm.{part}", int(channel)) for part in parts))
        for channel in largest
    ]
    head = ("channel", "x", "x − μ", "x̂", "weight", "bias", "y")
    return table(head, rows, f"The {len(rows)} channels with the largest numbers")
