"""How long the vectors of the residual stream grow from block to block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.chart import Line, line_chart
from gpt2np.explain.html import details, formula, panel, source, table, token, token_text
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.model.model import GPT2

Array = NDArray[Any]


def residual_norms(run: Run) -> Array:
    """The lengths of the residual stream's rows before the first block and after each, (L+1, N)."""
    rows = np.stack([run.residual(layer) for layer in range(run.config.n_layer + 1)])
    lengths: Array = np.sqrt(np.einsum("lnc,lnc->ln", rows, rows))
    return lengths


def residual_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    norms = numbers.add("residual.norm", residual_norms(run))
    numbers.add("residual.median", np.median(norms, axis=1))
    steps = ["start", *map(str, range(run.config.n_layer))]
    position = run.focus.position
    lines = [Line("median of all", numbers.arrays["residual.median"].tolist())]
    if position:
        lines.append(Line(_name(run, position), norms[:, position].tolist()))
    lines.append(Line(_name(run, 0), norms[:, 0].tolist()))
    says = (
        "Every block only adds to the residual stream, and so its vectors mostly grow from block "
        "to block. That is why layer norms are needed, and why what an early block wrote counts "
        "for less at the end. In many models the first token’s vector grows far beyond the "
        "others: it is where heads look that have nothing to do."
    )
    rows = [
        (
            f"{n} {token(run.bytes_of(number))}",
            *(numbers.show("residual.norm", at, n) for at in range(len(steps))),
        )
        for n, number in enumerate(run.ids)
    ]
    body = [
        formula("length = √(Σ x²), over the channels"),
        source(GPT2._block, residual_norms),
        line_chart(lines, steps, "The residual stream’s length, block by block", logarithmic=True),
        details(
            "All lengths as a table",
            table(
                ("token", *steps),
                rows,
                "The residual stream’s length at each token, after each block",
            ),
        ),
    ]
    return panel("residual", "The residual stream grows", says, "\n".join(body), level=3)


def _name(run: Run, position: int) -> str:
    return f"{position} {token_text(run.bytes_of(run.ids[position]))}"[:16]
