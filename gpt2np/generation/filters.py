"""Functions from logits to logits: what is ruled out becomes -inf. (…, V) → (…, V).

They follow `transformers`' logits warpers, in whose order they are meant to be used: temperature,
top-k, top-p, min-p, typical. Ties are treated as there.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.model.ops import softmax

Array = NDArray[Any]


def apply_temperature(logits: Array, temperature: float) -> Array:
    """Logits divided by `temperature` > 0: below 1 the likely gets likelier, above 1 less so.

    Each row is shifted to have its highest at 0, which changes no probability: so the smallest
    temperature, too, ends in the likeliest token and not in inf / inf.
    """
    shifted = (logits - logits.max(-1, keepdims=True)).astype(np.float64)
    with np.errstate(over="ignore"):
        scaled: Array = (shifted / temperature).astype(logits.dtype)
    return scaled


def top_k_filter(logits: Array, k: int) -> Array:
    """Keep the k highest logits of each row, and those equal to the lowest of them."""
    if k >= logits.shape[-1]:
        return logits
    kth = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits < kth, -math.inf, logits)


def top_p_filter(logits: Array, p: float) -> Array:
    """Keep the fewest likeliest tokens that together reach probability p (Holtzman et al. 2020).

    The token that crosses p is kept, so at least one is. Of equal logits at the border the later
    ids are kept (in `transformers` it depends on the processor which, as torch.sort is not stable).
    The sum is rounded to the logits' dtype, as torch.cumsum does, which decides some borders.
    """
    order = np.argsort(logits, axis=-1, kind="stable")  # rising
    probabilities = softmax(np.take_along_axis(logits, order, -1))
    cumulative = np.cumsum(probabilities, axis=-1, dtype=np.float64).astype(logits.dtype)
    removed = cumulative <= 1 - p
    removed[..., -1] = False
    by_id = np.empty_like(removed)
    np.put_along_axis(by_id, order, removed, -1)
    return np.where(by_id, -math.inf, logits)


def min_p_filter(logits: Array, p: float) -> Array:
    """Keep the tokens at least `p` times as likely as the likeliest (Nguyen et al. 2024)."""
    probabilities = softmax(logits)
    least = probabilities.max(-1, keepdims=True) * p
    removed = probabilities < least.astype(logits.dtype)
    return np.where(removed, -math.inf, logits)


def typical_filter(logits: Array, p: float) -> Array:
    """Keep the tokens whose surprise is nearest to its mean, until they reach probability p.

    Meister et al. 2022, "Locally Typical Sampling". The token that crosses p is kept, with those
    equally near.
    """
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    with np.errstate(invalid="ignore"):  # 0 × -inf, of what is ruled out
        entropy = -np.nansum(np.exp(log_p) * log_p, -1, keepdims=True)
    distance = np.abs(-log_p - entropy)
    order = np.argsort(distance, axis=-1, kind="stable")
    probabilities = softmax(np.take_along_axis(logits, order, -1))
    cumulative = np.cumsum(probabilities, -1, dtype=np.float64).astype(logits.dtype)
    last = np.minimum((cumulative < p).sum(-1, keepdims=True), logits.shape[-1] - 1)
    farthest = np.take_along_axis(distance, np.take_along_axis(order, last, -1), -1)
    return np.where(distance > farthest, -math.inf, logits)
