"""What a pass over a prompt looks like in a few numbers: lens, attention, next token.

Shape letters: K residuals, L layers, H heads, T tokens, n of the likeliest or largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.interp.attention_summary import (
    PATTERNS,
    AttentionSummary,
    attention_summary,
)
from gpt2np.interp.lens import RESIDUALS, LensTable, lens_table, likeliest, probabilities_of
from gpt2np.interp.trace import Trace
from gpt2np.model import GPT2

Array = NDArray[Any]

NEEDED = (*RESIDUALS, PATTERNS, "logits")
"""The points that an overview is made of."""


@dataclass(frozen=True)
class Look:
    """How much the last token looks at another one, by one head."""

    layer: int
    head: int
    position: int
    weight: float


@dataclass(frozen=True)
class Numbers:
    """An array in a few numbers."""

    name: str
    shape: tuple[int, ...]
    least: float
    mean: float
    largest: float


@dataclass(frozen=True)
class Overview:
    """What can be seen of a pass at a glance.

    Attributes:
        ids: the prompt, T.
        lens: the n likeliest next tokens at every residual.
        looks: of each layer, the n largest weights in the last token's rows of the patterns.
        attention: of every head.
        next_ids: the n likeliest after the prompt.
        next_probabilities: theirs, of the whole vocabulary.
        vocab_size: how many tokens share the probability.
    """

    ids: list[int]
    lens: LensTable
    looks: list[list[Look]]
    attention: AttentionSummary
    next_ids: list[int]
    next_probabilities: list[float]
    vocab_size: int


def overview(
    model: GPT2,
    trace: Trace,
    n: int = 10,
    *,
    last: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Overview:
    """Of a trace that holds the points in NEEDED; `last` and `progress` as in `lens_table`.

    Raises:
        InvalidArgumentError: it doesn't, or n is no number of tokens.
        CheckpointError: the logits, or those of the lens, are infinite or not numbers.
    """
    names = trace.held(PATTERNS)
    lens = lens_table(model, trace, n, last=last, progress=progress)
    p = probabilities_of(trace["logits"][-1])
    found = likeliest(p, n)
    return Overview(
        trace.ids.tolist(),
        lens,
        [_looks(layer, trace[name][:, -1], n) for layer, name in enumerate(names)],
        attention_summary(trace),
        found.tolist(),
        p[found].tolist(),
        model.config.vocab_size,
    )


def _looks(layer: int, rows: Array, n: int) -> list[Look]:
    """The n largest weights of a layer's rows (H, T)."""
    heads, positions = np.unravel_index(likeliest(rows.reshape(-1), min(n, rows.size)), rows.shape)
    return [
        Look(layer, int(head), int(position), float(rows[head, position]))
        for head, position in zip(heads, positions, strict=True)
    ]


def numbers_of(arrays: Mapping[str, Array]) -> list[Numbers]:
    """Shape, least, mean and largest of every array."""
    return [
        Numbers(name, array.shape, float(array.min()), float(array.mean()), float(array.max()))
        for name, array in arrays.items()
    ]


def token_bytes(ids: Sequence[int], table: Mapping[int, bytes]) -> list[bytes]:
    """The tokens of ids; [123] for one that the model has and the vocabulary has not."""
    return [table.get(number, f"[{number}]".encode()) for number in ids]


def as_json(seen: Overview, table: Mapping[int, bytes]) -> dict[str, Any]:
    """All numbers. A token that is no text by itself has its bytes as in Python."""

    def tokens(ids: Sequence[int]) -> list[str]:
        return [token.decode("utf-8", "backslashreplace") for token in token_bytes(ids, table)]

    lens = seen.lens
    return {
        "ids": seen.ids,
        "tokens": tokens(seen.ids),
        "lens": {
            "points": lens.points,
            "positions": lens.positions.tolist(),
            "ids": lens.ids.tolist(),
            "tokens": [[tokens(row.tolist()) for row in point] for point in lens.ids],
            "probabilities": lens.probabilities.tolist(),
        },
        "attention": {
            **{name: array.tolist() for name, array in vars(seen.attention).items()},
            "last_token": [[asdict(look) for look in layer] for layer in seen.looks],
        },
        "next": [
            {"id": number, "token": token, "probability": probability}
            for number, token, probability in zip(
                seen.next_ids, tokens(seen.next_ids), seen.next_probabilities, strict=True
            )
        ],
    }
