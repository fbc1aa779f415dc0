"""Logit lens (nostalgebraist 2020): the predictions of a model that ends after a given block.

Shape letters: K residuals, P positions, C channels, V vocabulary, n tokens per prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpt2np.errors import check_argument, is_integer
from gpt2np.generation.logits_processors import check_finite
from gpt2np.interp.trace import Trace, as_gpt2, check_trace
from gpt2np.kernels.array import Array, IntArray, equal_fields
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2
from gpt2np.model.ops import layer_norm, softmax

RESIDUALS = ("embed", "blocks.*.resid")
"""The residual stream before the first block and after each block."""

_CHUNK = 128  # rows of logits at a time, to bound the memory


@np.errstate(under="ignore")
def logit_lens(model: GPT2 | LanguageModel, residual: Array) -> Array:
    """Apply ln_f and the unembedding to a residual (…, C). Returns logits (…, V).

    The last block's residual gives the logits of `GPT2.forward`, bit-identical under the conditions
    in the docstring of `forward`.
    """
    model = as_gpt2(model)
    channels = model.config.n_embd
    is_residual = isinstance(residual, np.ndarray) and residual.shape[-1:] == (channels,)
    check_argument(is_residual, "residual", residual, f"an array (…, {channels})")
    ln_f = model.weights["ln_f.weight"], model.weights["ln_f.bias"]
    x = layer_norm(residual, *ln_f, model.config.layer_norm_epsilon)
    return model.unembed(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


@dataclass(frozen=True, repr=False)
class LensTable:
    """The most likely next tokens at every residual and position."""

    points: tuple[str, ...]  # (K) names of the residuals, from the first layer to the last
    positions: IntArray  # (P)
    ids: IntArray  # (K, P, n), the most likely first
    probabilities: Array  # (K, P, n), over the whole vocabulary
    texts: Mapping[int, str] = field(default_factory=dict)  # of `ids`; empty for a GPT2

    def __repr__(self) -> str:
        """Return a table as text: the most likely token of each residual and position."""
        rows = [("residual", *map(str, self.positions))]
        for point, ids, numbers in zip(
            self.points, self.ids[..., 0].tolist(), self.probabilities[..., 0].tolist(), strict=True
        ):
            cells = (f"{self._text(i)} {p:.0%}" for i, p in zip(ids, numbers, strict=True))
            rows.append((point, *cells))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def _text(self, token_id: int) -> str:
        return repr(self.texts[token_id]) if self.texts else f"id {token_id}"

    __eq__ = equal_fields


def lens_table(
    model: GPT2 | LanguageModel,
    trace: Trace,
    n: int = 1,
    points: str | Sequence[str] = RESIDUALS,
    *,
    last: int | None = None,
) -> LensTable:
    """Use the logit lens to return the n most likely next tokens at every residual and position.

    `points` selects residuals of the trace, and `last` the number of final positions (None: all).

    Raises:
        InvalidArgumentError: the trace lacks a hook point, or n is out of range.
        CheckpointError: the logits of a prediction are infinite or NaN.
    """
    lm = model if isinstance(model, LanguageModel) else None
    model = as_gpt2(model)
    check_trace(trace)
    vocab_size = model.config.vocab_size
    is_valid = is_integer(n) and 1 <= n <= vocab_size
    check_argument(is_valid, "n", n, f"an integer from 1 to {vocab_size}")
    is_valid = last is None or (is_integer(last) and last >= 1)
    check_argument(is_valid, "last", last, "an integer, at least 1, or None for all")
    names = trace.require(points)
    first = 0 if last is None else max(0, len(trace.ids) - last)
    positions = np.arange(first, len(trace.ids))
    residuals = np.concatenate([trace[name][positions] for name in names])  # (K·P, C)
    ids = np.empty((len(residuals), n), np.int64)
    probabilities = np.empty(ids.shape, residuals.dtype)
    for start in range(0, len(residuals), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        logits = logit_lens(model, residuals[chunk])
        check_finite(logits, model)
        p = softmax(logits)
        ids[chunk] = top_k(p, n)
        probabilities[chunk] = np.take_along_axis(p, ids[chunk], -1)
    shape = len(names), len(positions), n
    known = np.unique(ids).tolist() if lm else []
    texts = dict(zip(known, lm.tokenizer.token_texts(known), strict=True)) if lm else {}
    return LensTable(
        tuple(names), positions, ids.reshape(shape), probabilities.reshape(shape), texts
    )


def top_k(scores: Array, k: int) -> IntArray:
    """Return the indices of the k highest scores (…, V), highest first; ties: lowest first."""
    threshold = np.partition(scores, -k, axis=-1)[..., -k, None]
    above, equal = scores > threshold, scores == threshold
    ties = k - above.sum(-1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(-1) <= ties))
    indices = chosen.nonzero()[-1].reshape(*scores.shape[:-1], k)
    order = np.argsort(-np.take_along_axis(scores, indices, -1), axis=-1, kind="stable")
    return np.take_along_axis(indices, order, -1)
