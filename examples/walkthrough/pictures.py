"""The pictures that more than one line of matplotlib draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gpt2np.tokenizer.trace import MergeStep

SKY, ORANGE = "#56B4E9", "#E69F00"


def merge_rows(axes: Axes, steps: Sequence[MergeStep]) -> None:
    """A row of boxes for each step: its tokens, and in orange the two that are merged next."""
    for row, step in enumerate(steps):
        start = 0
        for place, token in enumerate(step.tokens):
            chosen = step.chosen is not None and place in (step.chosen, step.chosen + 1)
            axes.barh(
                row,
                len(token) - 0.1,
                left=start,
                height=0.7,
                color=ORANGE if chosen else SKY,
            )
            axes.text(
                start + len(token) / 2 - 0.05, row, token, ha="center", va="center"
            )
            start += len(token)
        if step.chosen is not None:
            axes.text(start + 0.3, row, f"rank {step.ranks[step.chosen]}", va="center")
    axes.set(
        xlim=(0, start + 2.2),
        ylim=(len(steps) - 0.5, -0.5),
        xlabel="bytes",
        ylabel="step",
    )
    axes.set_yticks(range(len(steps)))


def heat_map(
    figure: Figure,
    axes: Axes,
    array: NDArray[Any],
    bar: str | None = None,
    **options: Any,
) -> None:
    """A matrix as colours, its first row above, with a bar that tells what they mean."""
    image = axes.imshow(array, interpolation="nearest", **options)
    axes.spines[:].set_visible(False)
    if bar is not None:
        figure.colorbar(image, ax=axes, label=bar)


def label_tokens(axes: Axes, tokens: Sequence[str], both: bool = True) -> None:
    """Tokens as the ticks of the x axis and, if asked, the y axis, without their spaces."""
    names = [token.strip() or "⏎" for token in tokens]
    axes.set_xticks(np.arange(len(names)), names, rotation=90)
    if both:
        axes.set_yticks(np.arange(len(names)), names)
