"""How far float32 is from float64, for this prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.chart import Line, line_chart
from gpt2np.explain.html import formula, panel, source, table
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.interp import trace
from gpt2np.model.model import GPT2
from gpt2np.model.ops import softmax

Array = NDArray[Any]


def in_float64(model: GPT2) -> GPT2:
    """The same model with the same weights, to compute in float64. It takes twice the memory."""
    weights = {name: array.astype(np.float64) for name, array in model.weights.items()}
    return GPT2(model.config, weights)


def exact_arrays(run: Run) -> Mapping[str, Array]:
    """The residual stream after each block and the logits of the same ids in float64."""
    return trace(in_float64(run.model), run.ids, ["embed", "blocks.*.resid", "logits"])


def precision_panel(run: Run, numbers: Numbers, exact: Mapping[str, Array] | None) -> str:
    """The panel's markup."""
    if exact is None:
        says = (
            "Everything on this page was computed in float32, numbers with about 7 decimal "
            "digits. The comparison with float64 was left out, as the page was made with "
            "--no-float64."
        )
        return panel("precision", "Float honesty", says, source(GPT2.forward))
    logits, reference = run.arrays["logits"], exact["logits"]
    _add_differences(numbers, logits, reference)
    same = logits.argmax(1) == reference.argmax(1)
    residuals = numbers.add("precision.residual", _relative_errors(run, exact))
    says = (
        "Everything above was computed in float32, numbers with about 7 decimal digits; sums of "
        "thousands of them lose some. Here the same ids went through the same weights once more "
        f"in float64, with 16 digits. The likeliest next token is the same at {int(same.sum())} of "
        f"{len(same)} places."
    )
    steps = ["start", *map(str, range(run.config.n_layer))]
    body = [
        formula("difference = |float32 − float64|      relative: ÷ the vector’s length"),
        source(GPT2.forward, in_float64),
        _differences(numbers),
        line_chart(
            [Line("largest of all tokens", residuals.tolist())],
            steps,
            "The residual stream’s relative difference to float64, after each block",
            logarithmic=True,
        ),
    ]
    return panel("precision", "Float honesty", says, "\n".join(body))


def _differences(numbers: Numbers) -> str:
    names = {"logits": "precision.logits", "probabilities": "precision.probability"}
    rows = [
        (name, numbers.show(array, 0, as_="2g"), numbers.show(array, 1, as_="2g"))
        for name, array in names.items()
    ]
    caption = "Difference to float64, all tokens of the prompt"
    low, high = (numbers.show("precision.range", at) for at in (0, 1))
    return (
        f"{table(('', 'largest', 'mean'), rows, caption)}"
        f'<p class="facts">The logits themselves go from {low} to {high}.</p>'
    )


def _add_differences(numbers: Numbers, logits: Array, reference: Array) -> None:
    of_probabilities = softmax(logits.astype(np.float64)) - softmax(reference)
    for name, array in (("logits", logits - reference), ("probability", of_probabilities)):
        difference = np.abs(array)
        numbers.add(f"precision.{name}", np.array([difference.max(), difference.mean()]))
    numbers.add("precision.range", np.array([reference.min(), reference.max()]))


def _relative_errors(run: Run, exact: Mapping[str, Array]) -> Array:
    """The largest relative difference of a token's vector, before and after each block, (L+1,)."""
    errors = []
    for layer in range(run.config.n_layer + 1):
        reference = exact[f"blocks.{layer - 1}.resid" if layer else "embed"]
        difference = np.linalg.norm(run.residual(layer) - reference, axis=1)
        length = np.maximum(np.linalg.norm(reference, axis=1), np.finfo(np.float64).tiny)
        errors.append((difference / length).max())
    return np.array(errors)
