"""Summaries of a trace: statistics of attention heads and arrays.

Shape letters: H heads, R queries, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.interp.trace import Trace, as_gpt2, check_trace, trace
from gpt2np.kernels.array import Array, equal_fields
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2

PATTERNS = "blocks.*.attn.pattern"


@dataclass(frozen=True)
class AttentionSummary:
    """Statistics of the attention heads, averaged over the queries: arrays (layers, heads)."""

    entropy: Array  # of attention weights, in nats: log T if uniform, 0 on one token
    distance: Array  # distance from query to key in tokens, weighted by attention
    previous_token: Array  # weight on the previous token; 0 if there is one token only
    first_token: Array  # weight on the first token, the usual target of idle heads

    __eq__ = equal_fields


def attention_summary(trace: Trace) -> AttentionSummary:
    """Summarize every attention head of a trace that has blocks.*.attn.pattern.

    A trace of `record_pass` has the last 16 queries only, which are then averaged.

    Raises:
        InvalidArgumentError: the trace lacks the patterns.
    """
    check_trace(trace)
    layers = [_summarize_layer(trace[name]) for name in trace.require(PATTERNS)]
    return AttentionSummary(*(np.stack(means) for means in zip(*layers, strict=True)))


def _summarize_layer(pattern: Array) -> tuple[Array, Array, Array, Array]:
    """Compute the fields of AttentionSummary from the last rows of a pattern, (H, R, T).

    Returns four arrays (H,).
    """
    heads, rows, tokens = pattern.shape
    logs = np.log(pattern, out=np.zeros_like(pattern), where=pattern > 0)
    distance = np.arange(tokens)[-rows:, None] - np.arange(tokens)
    previous = np.zeros((heads, 1), pattern.dtype)
    if tokens > 1:
        previous = np.diagonal(pattern, tokens - rows - 1, 1, 2)
    return (
        -(pattern * logs).sum(-1).mean(-1),
        (pattern * distance).sum(-1).mean(-1).astype(pattern.dtype),
        previous.mean(-1),
        pattern[..., 0].mean(-1),
    )


def induction_scores(
    model: GPT2 | LanguageModel, ids: Sequence[int] | None = None, *, seed: int = 0
) -> Array:
    """Score each head for induction: attention to the token after an earlier copy of the query.

    The model reads the ids twice in a row. The score averages over the queries of the second copy
    (Olsson et al. 2022, "In-context Learning and Induction Heads"). By default, 50 random ids are
    drawn with `seed`, or fewer if the context is below 100 tokens. Returns (layers, heads).

    Raises:
        InvalidArgumentError: there are fewer than two ids, or the context has fewer than four
            positions.
        ContextLengthError: the repeated ids exceed the model's context.
    """
    model = as_gpt2(model)
    if ids is None:
        rng = np.random.default_rng(seed)
        n = min(50, model.config.n_positions // 2)
        if n < 2:
            raise InvalidArgumentError(
                "induction needs two ids twice, which the model's context of "
                f"{model.config.n_positions} cannot hold"
            )
        ids = rng.integers(0, model.config.vocab_size, n).tolist()
    if len(ids) < 2:
        raise InvalidArgumentError("induction needs at least two ids, which are then repeated")
    repeated = trace(model, [*ids, *ids], PATTERNS)
    # The token at n + j first occurred at j. The token at j + 1 is n - 1 tokens back.
    return np.stack([_mean_weight_at(pattern, len(ids) - 1) for pattern in repeated.values()])


def _mean_weight_at(pattern: Array, distance: int) -> Array:
    """Average each head's weight on the token `distance` before the query, over queries, (H,)."""
    return np.asarray(np.diagonal(pattern, -distance, 1, 2)[:, 1:].mean(-1))
