"""Log probabilities of tokens in the model's own distribution, before penalties and filters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.generation.logits_processors import compute_logits
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache

_CHUNK = 64  # tokens whose logits are in memory at a time


@dataclass(frozen=True)
class TokenLogprob:
    """The log probability of one token, and of the most likely tokens at its position.

    Attributes:
        id: the token.
        logprob: its natural log probability, given the tokens before it.
        top: the most likely tokens with their log probabilities, the most likely first.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: Array) -> Array:
    """Return log probabilities: logits (…, V) → (…, V), float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def token_logprob(logits: Array, token_id: int, top: int) -> TokenLogprob:
    """Return the log probability of an id in logits (V,), with the `top` most likely ids.

    Among equal logits the lower id comes first.
    """
    logprobs = log_softmax(logits)
    most_likely: list[tuple[int, float]] = []
    if top:
        top = min(top, len(logits))
        candidates = np.flatnonzero(logits >= np.partition(logits, -top)[-top])
        order = candidates[np.argsort(-logits[candidates], kind="stable")][:top]
        most_likely = [(int(i), float(logprobs[i])) for i in order]
    return TokenLogprob(int(token_id), float(logprobs[token_id]), tuple(most_likely))


def text_logprobs(model: GPT2, ids: Sequence[int], top: int, cache: KVCache) -> list[TokenLogprob]:
    """Return the log probability of each of ids[1:], given the ids before it.

    Args:
        model: the model.
        ids: the text.
        top: how many of the most likely ids to return at each position.
        cache: an empty cache; afterwards it holds the keys and values of ids[:-1].

    Raises:
        CheckpointError: the logits are infinite or NaN.
    """
    logprobs = []
    for start in range(0, len(ids) - 1, _CHUNK):
        stop = min(start + _CHUNK, len(ids) - 1)
        logits = compute_logits(model, [ids[start:stop]], [cache])
        targets = ids[start + 1 : stop + 1]
        logprobs += [token_logprob(row, i, top) for row, i in zip(logits, targets, strict=True)]
    return logprobs
