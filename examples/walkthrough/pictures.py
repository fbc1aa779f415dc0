"""Plots that the notebooks share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpt2np.generation.scoring import ScoredText
from gpt2np.kernels.array import Array
from gpt2np.tokenizer.trace import MergeStep

SKY, ORANGE = "#56B4E9", "#E69F00"


def merge_rows(axes: Axes, steps: Sequence[MergeStep]) -> None:
    """Draw each step as a row of tokens; the next pair to merge is orange."""
    for row, step in enumerate(steps):
        start = 0
        for index, token in enumerate(step.tokens):
            is_chosen = step.chosen is not None and index in (
                step.chosen,
                step.chosen + 1,
            )
            axes.barh(
                row,
                len(token) - 0.1,
                left=start,
                height=0.7,
                color=ORANGE if is_chosen else SKY,
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


def token_boxes(
    axes: Axes,
    tokens: Sequence[str],
    row: float = 0,
    start: float = 0,
    color: str = SKY,
    labels: Sequence[object] = (),
) -> float:
    """Draw tokens as a row of boxes, with a label below each; return where the row ends."""
    for index, token in enumerate(tokens):
        width = len(token) + 0.9
        axes.barh(row, width - 0.2, left=start, height=0.7, color=color)
        center = start + width / 2 - 0.1
        axes.text(center, row, token, ha="center", va="center", fontsize=8)
        if labels:
            label = str(labels[index])
            axes.text(center, row + 0.6, label, ha="center", va="center", fontsize=7)
        start += width
    return start


def heat_map(
    figure: Figure,
    axes: Axes,
    array: Array,
    colorbar_label: str | None = None,
    **options: Any,
) -> None:
    """Draw a matrix as colors, first row at the top, with an optional color bar."""
    image = axes.imshow(array, interpolation="nearest", **options)
    axes.spines[:].set_visible(False)
    if colorbar_label is not None:
        figure.colorbar(image, ax=axes, label=colorbar_label)


def label_tokens(axes: Axes, tokens: Sequence[str], both: bool = True) -> None:
    """Label the ticks of the x axis, and of the y axis if `both`, with tokens without spaces."""
    names = [token.strip() or "⏎" for token in tokens]
    axes.set_xticks(np.arange(len(names)), names, rotation=90)
    if both:
        axes.set_yticks(np.arange(len(names)), names)


def surprise_bars(
    axes: Axes, words: Sequence[ScoredText], highlight: str | None = None
) -> None:
    """Draw the surprisal of each word as a bar, first word at the top."""
    bits = [word.surprisal for word in words]
    colors = [ORANGE if word.text == highlight else SKY for word in words]
    bars = axes.barh(range(len(words)), bits, color=colors)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set_yticks(range(len(words)), [word.text for word in words])
    axes.set(xlim=(0, 32))
    axes.invert_yaxis()
