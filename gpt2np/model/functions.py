"""The functions that GPT-2 is made of. Arrays in, arrays out; the result has the inputs' dtype.

Shape letters: N packed tokens, T tokens seen by one sequence, C channels, H heads, D head size.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

QUERY_BLOCK = 128  # queries of one piece of attention: what the causal mask hides is skipped


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    """Each row of x (…, C) brought to mean 0 and variance 1, times weight (C), plus bias (C).

    Ba et al. 2016; the variance is the biased one, as in torch.nn.LayerNorm.
    """
    centred: Array = x - x.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    centred /= np.sqrt(variance + epsilon)
    centred *= weight
    centred += bias
    return centred


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """x (N, in) times weight (in, out), plus bias (out): the layer GPT-2's code calls Conv1D."""
    y: Array = np.dot(x, weight)
    y += bias
    return y


def gelu_new(x: Array) -> Array:
    """GELU in the tanh form that GPT-2 uses (Hendrycks & Gimpel 2016, section 2), elementwise.

    ½·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), computed as x / (1 + exp(-2u)): the same
    function, quicker, and without the cancellation in 1 + tanh u for negative x.
    """
    u = x * x
    u *= -2 * math.sqrt(2 / math.pi) * 0.044715
    u -= 2 * math.sqrt(2 / math.pi)
    u *= x
    with np.errstate(over="ignore"):  # exp → inf, and x / inf is the right limit, 0
        np.exp(u, out=u)
    u += 1
    y: Array = np.divide(x, u, out=u)
    return y


def softmax(x: Array) -> Array:
    """The exponentials of x (…, n), each row divided by its sum. -inf gives exactly 0."""
    y: Array = x - x.max(-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(-1, keepdims=True)
    return y


def attention_pattern(query: Array, key: Array, scale: float) -> Array:
    """Who looks at whom: the softmax of the scaled and causally masked scores, (H, n, T).

    The queries (H, n, D) are those of the last n of T tokens, the keys (H, T, D) those of all:
    query i sees the keys up to T - n + i. So the same mask serves a whole text (n = T), a chunk
    after a cached beginning, and one new token.
    """
    n, t = query.shape[1], key.shape[1]
    scores = (query * scale) @ key.swapaxes(1, 2)
    if n > 1:
        scores[:, np.tri(n, t, t - n) == 0] = -math.inf
    return softmax(scores)


def causal_attention(query: Array, key: Array, value: Array, scale: float) -> Array:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2) for the last n of T tokens.

    query (H, n, D), key and value (H, T, D) → (H, n, D). Works through blocks of queries, so that
    the part of the pattern that the mask would hide is mostly never computed.
    """
    n, t = query.shape[1], key.shape[1]
    out = np.empty_like(query, order="C")
    for start in range(0, n, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, n)
        seen = t - n + stop
        pattern = attention_pattern(query[:, start:stop], key[:, :seen], scale)
        np.matmul(pattern, value[:, :seen], out=out[:, start:stop])
    return out


def split_heads(x: Array, n_head: int) -> Array:
    """(n, C) → (H, n, D): the channels of each head, without a copy."""
    return x.reshape(len(x), n_head, -1).swapaxes(0, 1)


def merge_heads(x: Array) -> Array:
    """(H, n, D) → (n, C): the heads' outputs side by side."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)
