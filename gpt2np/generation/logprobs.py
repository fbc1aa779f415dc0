"""Log probabilities of ids, in the model's own distribution: before any penalty or filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.generation.finite_logits import finite_logits
from gpt2np.model import GPT2, KVCache

Array = NDArray[Any]

_BLOCK = 64  # tokens whose logits are held at a time


@dataclass(frozen=True)
class TokenLogprob:
    """One token of a text.

    Attributes:
        id: the token.
        logprob: the natural logarithm of its probability after the tokens before it.
        top: the likeliest tokens in its place with theirs, the likeliest first.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: Array) -> Array:
    """Logits (…, V) → log probabilities (…, V), float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def token_logprob(logits: Array, token_id: int, top: int) -> TokenLogprob:
    """What the logits (V) say about an id, and the `top` likeliest; of equals the lower first."""
    logs = log_softmax(logits)
    likeliest: list[tuple[int, float]] = []
    if top:
        top = min(top, len(logits))
        among = np.flatnonzero(logits >= np.partition(logits, -top)[-top])
        order = among[np.argsort(-logits[among], kind="stable")][:top]
        likeliest = [(int(i), float(logs[i])) for i in order]
    return TokenLogprob(int(token_id), float(logs[token_id]), tuple(likeliest))


def text_logprobs(model: GPT2, ids: Sequence[int], top: int, cache: KVCache) -> list[TokenLogprob]:
    """Those of ids[1:], each after all before it; the logits of 64 tokens are held at a time.

    `cache`, empty before, holds all but the last id afterwards.

    Raises:
        CheckpointError: the logits are infinite or not numbers.
    """
    found = []
    for start in range(0, len(ids) - 1, _BLOCK):
        stop = min(start + _BLOCK, len(ids) - 1)
        logits = finite_logits(model, [ids[start:stop]], [cache])
        following = ids[start + 1 : stop + 1]
        found += [token_logprob(row, i, top) for row, i in zip(logits, following, strict=True)]
    return found
