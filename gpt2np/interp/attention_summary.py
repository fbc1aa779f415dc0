"""What each attention head does, in a few numbers.

Shape letters: L layers, H heads, T tokens, n tokens of a sequence that comes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.interp.trace import Trace, trace
from gpt2np.model import GPT2

Array = NDArray[Any]

PATTERNS = "blocks.*.attn.pattern"


@dataclass(frozen=True)
class AttentionSummary:
    """Means over the tokens that look, each (L, H).

    Attributes:
        entropy: of the pattern's rows, in nats: 0 if a head looks at one token, log T if at all T
            alike.
        distance: how many tokens back a head looks, the expectation by the pattern's row.
        previous_token: the weight on the token before; 0 if there is only one token.
        first_token: the weight on the first token, where heads look that have nothing to do.
    """

    entropy: Array
    distance: Array
    previous_token: Array
    first_token: Array


def attention_summary(trace: Trace) -> AttentionSummary:
    """Of every head, from a trace that holds blocks.*.attn.pattern.

    Raises:
        InvalidArgumentError: the trace doesn't hold the patterns.
    """
    per_layer = [_of_layer(trace[name]) for name in trace.held(PATTERNS)]
    return AttentionSummary(*(np.stack(numbers) for numbers in zip(*per_layer, strict=True)))


def _of_layer(pattern: Array) -> tuple[Array, Array, Array, Array]:
    """The four of a pattern (H, T, T), each (H)."""
    heads, tokens, _ = pattern.shape
    logs = np.log(pattern, out=np.zeros_like(pattern), where=pattern > 0)
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    before = np.diagonal(pattern, -1, 1, 2) if tokens > 1 else np.zeros((heads, 1), pattern.dtype)
    return (
        -(pattern * logs).sum(-1).mean(-1),
        (pattern * back).sum(-1).mean(-1).astype(pattern.dtype),
        before.mean(-1),
        pattern[..., 0].mean(-1),
    )


def induction_scores(model: GPT2, ids: Sequence[int] | None = None, *, seed: int = 0) -> Array:
    """How much each head looks at what came after the same token before, (L, H).

    The ids are run twice in a row; the score is the mean weight, over the second time, on the token
    that followed the first time (Olsson et al. 2022, "In-context Learning and Induction Heads").
    By default they are 50 random ones, or as many as fit twice, drawn by `seed`.

    Raises:
        InvalidArgumentError: fewer than two ids, or a context of fewer than four.
        ContextLengthError: twice the ids are more than the model's context.
    """
    if ids is None:
        rng = np.random.default_rng(seed)
        n = min(50, model.config.n_positions // 2)
        if n < 2:
            raise InvalidArgumentError(
                f"the model's context of {model.config.n_positions} has no room for two ids twice; "
                "induction can't be seen in it"
            )
        ids = rng.integers(0, model.config.vocab_size, n).tolist()
    if len(ids) < 2:
        raise InvalidArgumentError("induction needs at least two ids, which then come twice")
    twice = trace(model, [*ids, *ids], PATTERNS)
    # The token at n + j came before at j, and what followed it there stands n - 1 places back.
    return np.stack([_looks_back(pattern, len(ids) - 1) for pattern in twice.values()])


def _looks_back(pattern: Array, places: int) -> Array:
    """The mean weight (H) on the token so many places back, from those of the second time on."""
    return np.asarray(np.diagonal(pattern, -places, 1, 2)[:, 1:].mean(-1))
