"""The logit lens (nostalgebraist 2020): what a residual would predict if the model ended there.

Shape letters: K residuals, P positions, C channels, V vocabulary, n likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.interp.trace import Trace
from gpt2np.model import GPT2
from gpt2np.model.ops import layer_norm, softmax

Array = NDArray[Any]

RESIDUALS = ("embed", "blocks.*.resid")
"""What comes into the first block and out of each: the rows of a usual logit lens."""

_ROWS = 128  # of logits at a time, so that they take bounded memory


def logit_lens(model: GPT2, residual: Array) -> Array:
    """Any residual (…, C) through ln_f and the unembedding → logits (…, V).

    Of the last block's residual these are the model's logits: to the bit, where `GPT2.forward`
    promises that.
    """
    ln_f = model.weights["ln_f.weight"], model.weights["ln_f.bias"]
    x = layer_norm(residual, *ln_f, model.config.layer_norm_epsilon)
    return model.unembed(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


@dataclass(frozen=True)
class LensTable:
    """The likeliest next tokens after some tokens, at every residual.

    Attributes:
        points: (K) names of the residuals, from bottom to top.
        positions: (P) of the tokens.
        ids: (K, P, n), the likeliest first.
        probabilities: (K, P, n), of the whole vocabulary.
    """

    points: tuple[str, ...]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    probabilities: Array


def lens_table(
    model: GPT2,
    trace: Trace,
    n: int = 1,
    points: str | Sequence[str] = RESIDUALS,
    *,
    last: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> LensTable:
    """The n likeliest next tokens by the logit lens, of the residuals that a trace holds.

    Args:
        model: the one that was traced.
        trace: with these points.
        n: how many.
        points: residuals.
        last: of how many of the last tokens; by default of all.
        progress: is called with how many of the K·P predictions have just been made.

    Raises:
        InvalidArgumentError: the trace doesn't hold these points, or n is no number of tokens.
        CheckpointError: a prediction is infinite or not a number.
    """
    if not 1 <= n <= model.config.vocab_size:
        raise InvalidArgumentError(f"n is {n}; it must be from 1 to {model.config.vocab_size}")
    names = trace.held(points)
    positions = np.arange(len(trace.ids))[-last if last else 0 :]
    residuals = np.concatenate([trace[name][positions] for name in names])  # (K·P, C)
    ids = np.empty((len(residuals), n), np.int64)
    probabilities = np.empty(ids.shape, residuals.dtype)
    for start in range(0, len(residuals), _ROWS):
        rows = slice(start, start + _ROWS)
        p = probabilities_of(logit_lens(model, residuals[rows]))
        ids[rows] = likeliest(p, n)
        probabilities[rows] = np.take_along_axis(p, ids[rows], -1)
        progress(len(p))
    shape = len(names), len(positions), n
    return LensTable(tuple(names), positions, ids.reshape(shape), probabilities.reshape(shape))


def probabilities_of(logits: Array) -> Array:
    """Softmax of logits (…, V). CheckpointError if they are infinite or not numbers."""
    if not np.isfinite(logits).all():
        raise CheckpointError(
            "the model's logits are not numbers; its weights or config are damaged"
        )
    return softmax(logits)


def likeliest(scores: Array, n: int) -> NDArray[np.int64]:
    """The n highest of each row of scores (…, V), the highest first, of equals the lowest id."""
    least = np.partition(scores, -n, axis=-1)[..., -n, None]
    above, equal = scores > least, scores == least
    room = n - above.sum(-1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    found = chosen.nonzero()[-1].reshape(*scores.shape[:-1], n)
    order = np.argsort(-np.take_along_axis(scores, found, -1), axis=-1, kind="stable")
    return np.take_along_axis(found, order, -1)
