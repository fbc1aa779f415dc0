"""What the model is made of, and where the time and the operations of a pass went."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.explain.html import bar, details, formula, panel, source, table, text
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.explain.work import PARTS, part_flops, part_seconds
from gpt2np.runtime.packed_weights import Weights

_PASSES = 5
_GROUPS = {
    "wte.weight": "token embedding",
    "wpe.weight": "position embedding",
    "attn": "attention",
    "mlp": "MLP",
    "ln": "layer norms",
    "lm_head.weight": "unembedding of its own",
}


def audit_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup: every tensor, and their sum."""
    weights = run.model.weights
    shapes = weight_shapes(run.config)
    shapes |= {LM_HEAD: shapes[WTE]} if LM_HEAD in weights else {}
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    numbers.add("tensor.count", np.array(list(counts.values())))
    numbers.add("parameters", np.asarray(weights.parameters))
    size = weights.dtype.itemsize
    rows = [
        (
            f"<code>{text(name)}</code>",
            " × ".join(map(str, shapes[name])),
            numbers.show("tensor.count", at, as_="n"),
            f"{size * counts[name]:,}",
        )
        for at, name in enumerate(counts)
    ]
    total = numbers.show("parameters", as_="n")
    rows.append(
        ("<b>all together</b>", f"{len(counts)} tensors", f"<b>{total}</b>", f"{weights.nbytes:,}")
    )
    says = (
        "Nothing else is in the model: these tensors are all of it. Their counts add up to its "
        "size. In a small model the table of tokens is a large part; in a large one nearly all is "
        "in the blocks, and two thirds of that in the MLPs."
    )
    body = [
        formula("count = product of the shape      bytes = count · 4 in float32"),
        source(weight_shapes, Weights),
        _by_group(counts, weights.parameters),
        details(
            f"Every tensor, {len(counts)} of them",
            table(("tensor", "shape", "numbers", "bytes"), rows, "Every tensor of the model"),
        ),
    ]
    return panel("audit", "Every number of the model", says, "\n".join(body))


def _by_group(counts: dict[str, int], total: int) -> str:
    sums: dict[str, int] = defaultdict(int)
    for name, count in counts.items():
        group = next(g for g in _GROUPS if g == name or f".{g}" in name or name.startswith(g))
        sums[_GROUPS[group]] += count
    rows = [
        (group, f"{count:,}", f"{100 * count / total:.1f} %", bar(count / total))
        for group, count in sums.items()
    ]
    rows.append(("<b>all together</b>", f"<b>{sum(sums.values()):,}</b>", "100 %", ""))
    return table(("part", "numbers", "share", ""), rows, "Where the numbers are", kind="bars")


def time_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup: time and operations by part."""
    tokens = len(run.ids)
    flops = part_flops(run.config, tokens)
    seconds = part_seconds(run.model, run.ids, _PASSES)
    without = repeat(lambda: run.model.forward([run.ids]), Effort(_PASSES, 0.0)).median
    numbers.add("part.flops", np.array([flops.get(part, 0) for part in PARTS]))
    says = (
        f"One pass over the {tokens} tokens of this page, with logits for each, all blocks "
        "together. The time of a part is that between two calls of the hook, the median of "
        f"{_PASSES} passes after one that is not counted; without a hook the same pass took "
        f"{1000 * without:.2f} ms on this machine. Operations are counted from the shapes: those "
        "of the products, each query with the keys that it sees."
    )
    head = ("part", "ms", "of the time", "operations", "of these", "billions a second", "time")
    body = [
        formula("a product (n, k) · (k, m) has 2 · n · k · m operations"),
        source(part_seconds, part_flops),
        table(head, _time_rows(numbers, seconds, flops), "Time and operations", kind="bars"),
    ]
    return panel("time", "Where the time went", says, "\n".join(body))


def _time_rows(
    numbers: Numbers, seconds: dict[str, float], flops: dict[str, int]
) -> list[tuple[str, ...]]:
    total, all_flops = sum(seconds.values()), sum(flops.values())
    rows: list[tuple[str, ...]] = [
        (
            f"{meaning} <code>{part}</code>",
            f"{1000 * seconds[part]:.3f}",
            f"{100 * seconds[part] / total:.1f} %",
            numbers.show("part.flops", at, as_="n") if part in flops else "–",
            f"{100 * flops[part] / all_flops:.1f} %" if part in flops else "–",
            f"{flops[part] / seconds[part] / 1e9:.1f}" if part in flops else "–",
            bar(seconds[part] / total),
        )
        for at, (part, meaning) in enumerate(PARTS.items())
    ]
    rows.append(
        (
            "<b>all together</b>",
            f"<b>{1000 * total:.3f}</b>",
            "100 %",
            f"{all_flops:,}",
            "100 %",
            f"{all_flops / total / 1e9:.1f}",
            "",
        )
    )
    return rows
