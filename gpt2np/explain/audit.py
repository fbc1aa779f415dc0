"""Page sections on the model's tensors, on time and operations, and on float32 precision.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import numpy as np

from gpt2np.benchmark.counts import hook_point_flops
from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.explain.figures import Line, line_chart
from gpt2np.explain.markup import (
    Numbers,
    bar,
    computed_by,
    details,
    escape,
    formula,
    section,
    table,
)
from gpt2np.explain.run import Run
from gpt2np.interp import trace
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2
from gpt2np.model.ops import softmax
from gpt2np.runtime.packed_weights import PackedWeights

PASS_PARTS = {
    "embed": "token and position embedding",
    "ln_1": "layer norm before attention",
    "attn.q": "queries, keys and values",
    "attn.pattern": "scores and softmax",
    "attn.z": "weighted sum of values",
    "attn.out": "attention’s output projection",
    "resid_mid": "added to the residual stream",
    "ln_2": "layer norm before the MLP",
    "mlp.pre": "MLP, first matrix",
    "mlp.act": "activation function",
    "mlp.out": "MLP, second matrix",
    "resid": "added to the residual stream",
    "ln_f": "last layer norm",
    "logits": "unembedding",
}
"""Parts of a pass, by the hook point at the end of the part, without "blocks.i."."""

_SAME_PART = {"attn.k": "attn.q", "attn.v": "attn.q"}  # one matmul computes q, k and v
_N_PASSES = 5
_TENSOR_GROUPS = {
    "wte.weight": "token embedding",
    "wpe.weight": "position embedding",
    "attn": "attention",
    "mlp": "MLP",
    "ln": "layer norms",
    "lm_head.weight": "unembedding of its own",
}


def tensors_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on the model's tensors."""
    weights = run.model.weights
    shapes = weight_shapes(run.config)
    shapes |= {LM_HEAD: shapes[WTE]} if LM_HEAD in weights else {}
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    numbers.add("tensor.count", np.array(list(counts.values())))
    numbers.add("parameters", np.asarray(weights.parameters))
    size = weights.dtype.itemsize
    rows = [
        (
            f"<code>{escape(name)}</code>",
            " × ".join(map(str, shapes[name])),
            numbers.show("tensor.count", i, style="n"),
            f"{size * count:,}",
        )
        for i, (name, count) in enumerate(counts.items())
    ]
    total = numbers.show("parameters", style="n")
    n_tensors = f"{len(counts)} tensors"
    rows.append(("<b>total</b>", n_tensors, f"<b>{total}</b>", f"{weights.nbytes:,}"))
    summary = (
        "These tensors are the whole model. Their counts add up to its "
        "size. In a small model, the token embedding is a large part; in a large model, nearly all "
        "numbers are in the blocks, and two thirds of these in the MLPs."
    )
    body = [
        formula("count = product of the shape      bytes = count · 4 in float32"),
        computed_by(weight_shapes, PackedWeights),
        _group_table(counts, weights.parameters),
        details(
            f"Every tensor, {len(counts)} of them",
            table(("tensor", "shape", "numbers", "bytes"), rows, "Every tensor of the model"),
        ),
    ]
    return section("audit", "Every number of the model", summary, "\n".join(body))


def _group_table(counts: dict[str, int], total: int) -> str:
    sums: dict[str, int] = defaultdict(int)
    for name, count in counts.items():
        group = next(g for g in _TENSOR_GROUPS if f".{g}" in f".{name}")
        sums[_TENSOR_GROUPS[group]] += count
    rows = [
        (group, f"{count:,}", f"{100 * count / total:.1f} %", bar(count / total))
        for group, count in sums.items()
    ]
    rows.append(("<b>total</b>", f"<b>{sum(sums.values()):,}</b>", "100 %", ""))
    return table(("part", "numbers", "share", ""), rows, "Where the numbers are", kind="bars")


def seconds_per_part(model: GPT2, ids: list[int], passes: int) -> dict[str, float]:
    """Measure the seconds of each part of a forward pass, summed over all blocks.

    Returns medians over `passes` passes after a warm-up pass, for each hook point in PASS_PARTS.
    A hook takes the times; the time of the hook is excluded.
    """
    runs = [_time_pass(model, ids) for _ in range(passes + 1)][1:]
    return {part: median(run[part] for run in runs) for part in PASS_PARTS}


def _time_pass(model: GPT2, ids: list[int]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    last = time.perf_counter()

    def stop(name: str, array: Array) -> Array:
        nonlocal last
        part = name.split(".", 2)[2] if name.startswith("blocks.") else name
        seconds[_SAME_PART.get(part, part)] += time.perf_counter() - last
        last = time.perf_counter()
        return array

    model.forward([ids], hook=stop)
    return seconds


def time_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on time and operations."""
    tokens = len(run.ids)
    flops = hook_point_flops(run.config, tokens)
    seconds = seconds_per_part(run.model, run.ids, _N_PASSES)
    without_hook = repeat(lambda: run.model.forward([run.ids]), Effort(_N_PASSES, 0.0)).median
    numbers.add("part.flops", np.array([flops.get(part, 0) for part in PASS_PARTS]))
    summary = (
        f"One pass over the {tokens} tokens of this page, with logits for each token, all blocks "
        "together. The time of a part is the time between two calls of the hook, the median of "
        f"{_N_PASSES} passes after a warm-up pass; without a hook the same pass took "
        f"{1000 * without_hook:.2f} ms on this machine. Operations are counted from the shapes of "
        "the matrix products, each query with the keys that it sees."
    )
    head = ("part", "ms", "of the time", "operations", "of these", "billions a second", "time")
    body = [
        formula("a product (n, k) · (k, m) has 2 · n · k · m operations"),
        computed_by(seconds_per_part, hook_point_flops),
        table(head, _time_rows(numbers, seconds, flops), "Time and operations", kind="bars"),
    ]
    return section("time", "Where the time went", summary, "\n".join(body))


def _time_rows(
    numbers: Numbers, seconds: dict[str, float], flops: dict[str, int]
) -> list[tuple[str, ...]]:
    total, total_flops = sum(seconds.values()), sum(flops.values())
    rows = [
        (
            f"{meaning} <code>{part}</code>",
            f"{1000 * seconds[part]:.3f}",
            f"{100 * seconds[part] / total:.1f} %",
            numbers.show("part.flops", i, style="n") if part in flops else "–",
            f"{100 * flops[part] / total_flops:.1f} %" if part in flops else "–",
            f"{flops[part] / seconds[part] / 1e9:.1f}" if part in flops else "–",
            bar(seconds[part] / total),
        )
        for i, (part, meaning) in enumerate(PASS_PARTS.items())
    ]
    milliseconds, rate = f"<b>{1000 * total:.3f}</b>", f"{total_flops / total / 1e9:.1f}"
    return [
        *rows,
        ("<b>total</b>", milliseconds, "100 %", f"{total_flops:,}", "100 %", rate, ""),
    ]


def in_float64(model: GPT2) -> GPT2:
    """Return a copy of the model in float64, which needs twice the memory of float32."""
    weights = {name: array.astype(np.float64) for name, array in model.weights.items()}
    return GPT2(model.config, weights)


def precision_section(run: Run, numbers: Numbers, float64: bool) -> str:
    """Return the markup of the section on precision; `float64` adds a comparison with float64."""
    if not float64:
        summary = (
            "Everything on this page was computed in float32, numbers with about 7 decimal "
            "digits. The comparison with float64 was left out (float64=False)."
        )
        return section("precision", "Float32 precision", summary, computed_by(GPT2.forward))
    exact = trace(in_float64(run.model), run.ids, ["embed", "blocks.*.resid", "logits"])
    logits, reference = run.arrays["logits"], exact["logits"]
    same = logits.argmax(1) == reference.argmax(1)
    errors = numbers.add("precision.residual", _relative_errors(run, exact))
    summary = (
        "Everything above was computed in float32, numbers with about 7 decimal digits; sums of "
        "thousands of such numbers lose some digits. Here the same ids went through the same "
        "weights once more in float64, with 16 digits. The most likely next token is the same at "
        f"{int(same.sum())} of {len(same)} positions."
    )
    line = Line("largest of all tokens", errors.tolist())
    title = "The residual stream’s relative difference to float64, after each block"
    body = [
        formula("difference = |float32 − float64|      relative: ÷ the vector’s length"),
        computed_by(GPT2.forward, in_float64),
        _difference_table(numbers, logits, reference),
        line_chart([line], run.layer_labels, title, logarithmic=True),
    ]
    return section("precision", "Float32 precision", summary, "\n".join(body))


def _difference_table(numbers: Numbers, logits: Array, reference: Array) -> str:
    probability_errors = softmax(logits.astype(np.float64)) - softmax(reference)
    for name, errors in (("logits", logits - reference), ("probability", probability_errors)):
        sizes = np.abs(errors)
        numbers.add(f"precision.{name}", np.array([sizes.max(), sizes.mean()]))
    numbers.add("precision.range", np.array([reference.min(), reference.max()]))
    names = {"logits": "precision.logits", "probabilities": "precision.probability"}
    rows = [
        (name, numbers.show(array, 0, style="2g"), numbers.show(array, 1, style="2g"))
        for name, array in names.items()
    ]
    caption = "Difference to float64, all tokens of the prompt"
    low, high = (numbers.show("precision.range", i) for i in (0, 1))
    return (
        f"{table(('', 'largest', 'mean'), rows, caption)}"
        f'<p class="facts">The logits themselves go from {low} to {high}.</p>'
    )


def _relative_errors(run: Run, exact: Mapping[str, Array]) -> Array:
    """Return each layer's largest relative error of a token's residual stream, (L+1,).

    `exact` holds the float64 activations.
    """
    errors = []
    for layer in range(run.config.n_layer + 1):
        reference = exact[f"blocks.{layer - 1}.resid" if layer else "embed"]
        difference = np.linalg.norm(run.residual(layer) - reference, axis=1)
        length = np.maximum(np.linalg.norm(reference, axis=1), np.finfo(np.float64).tiny)
        errors.append((difference / length).max())
    return np.array(errors)
