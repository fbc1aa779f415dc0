"""GPT-2's mathematical functions on arrays. Results have the dtype of the arguments.

Shape letters: C channels, h heads, n queries, T keys.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from gpt2np.kernels.array import Array, BoolArray
from gpt2np.kernels.matmul import matmul, ones_columns

_GELU_SCALE = 2 * math.sqrt(2 / math.pi)


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    """Normalize each row to mean 0 and variance 1, then multiply by `weight` and add `bias`.

    Ba et al. 2016. The variance is divided by C, not C - 1, as in torch.nn.LayerNorm. Takes
    x (…, C), weight (C,) and bias (C,).
    """
    centered: Array = x - np.add.reduce(x, -1, keepdims=True) / x.shape[-1]
    variance = np.add.reduce(centered * centered, -1, keepdims=True) / x.shape[-1]
    centered /= np.sqrt(variance + epsilon)
    centered *= weight
    centered += bias
    return centered


def softmax(x: Array) -> Array:
    """Return the softmax of each row of x (…, n). A value of -inf gives exactly 0."""
    y: Array = x - x.max(-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(-1, keepdims=True)
    return y


def causal_softmax(scores: Array, mask: BoolArray) -> Array:
    """Turn scores (h, n, T) into the attention pattern, in place.

    `mask` (n, m) covers the last m keys: True where a key follows the query. Every query attends to
    the first T - m keys. Masked keys get exactly 0. A row's bits do not depend on other rows.
    """
    if mask.size:
        last_keys = scores[..., scores.shape[-1] - mask.shape[-1] :]
        np.copyto(last_keys, -math.inf, where=mask)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    np.exp(scores, out=scores)
    # Unlike sums by np.sum, sums by `matmul` have the same bits for any number of rows.
    scores /= matmul(scores, ones_columns(scores.shape[-1], scores.dtype))[..., :1]
    return scores


def causal_mask(n: int, n_keys: int) -> BoolArray:
    """Return the mask (n, T) of the last n of T tokens: True where a key follows the query."""
    return np.arange(n_keys) > np.arange(n_keys - n, n_keys)[:, None]


@np.errstate(over="ignore")  # exp → inf, and x / inf is the right limit, 0
def gelu_new(x: Array) -> Array:
    """Return GELU in the tanh form that GPT-2 uses (Hendrycks & Gimpel 2016, section 2).

    The form ½·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³) equals x / (1 + exp(-2u)). The
    quotient is faster to compute, and avoids the cancellation in 1 + tanh u for negative x.
    """
    u = x * x
    u *= -_GELU_SCALE * 0.044715
    u -= _GELU_SCALE
    u *= x
    np.exp(u, out=u)
    u += 1
    y: Array = np.divide(x, u, out=u)
    return y


def gelu(x: Array) -> Array:
    """Return exact GELU, x·Φ(x), where Φ is the normal distribution's cumulative function.

    Hendrycks & Gimpel 2016. The form max(x, 0) - |x|·Φ(-|x|) avoids cancellation. NumPy has no
    erfc. Therefore Φ(-|x|) = ½·erfc(z) is computed as ½·t·exp(p - z²), where z = |x| / √2,
    t = 2 / (2 + z), and p is a short Chebyshev series in t.
    """
    size = np.abs(x)
    z = size * math.sqrt(0.5)
    t = 2 / (2 + z)
    y = _chebyshev_sum(_erfc_series(20 if x.dtype == np.float64 else 10), 2.4 * t - 1.4)
    z *= z
    y -= z
    np.exp(y, out=y)
    t *= size
    t *= -0.5
    y *= t
    y += np.maximum(x, 0)
    return y


@np.errstate(over="ignore")  # exp → inf, and x / inf is the right limit, 0
def silu(x: Array) -> Array:
    """Return x / (1 + exp(-x)), also called swish (Elfwing et al. 2017)."""
    y: Array = np.negative(x)
    np.exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)
    return y


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    y: Array = np.maximum(x, 0)
    return y


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    y: Array = np.tanh(x)
    return y


@cache
def _erfc_series(terms: int) -> list[float]:
    """Return the Chebyshev coefficients of p in `gelu`, as a series in 2.4·t - 1.4.

    p = log(erfc(z) / t) + z² with t = 2 / (2 + z), for 0 ≤ z ≤ 10.
    """

    from numpy.polynomial import Chebyshev  # slow to import, and only for exact GELU

    def smooth(points: Array) -> Array:
        ts = [(point + 1.4) / 2.4 for point in points.tolist()]
        return np.array([math.log(math.erfc(2 / t - 2) / t) + (2 / t - 2) ** 2 for t in ts])

    return list(map(float, Chebyshev.interpolate(smooth, terms - 1).coef))


def _chebyshev_sum(series: list[float], x: Array) -> Array:
    """Evaluate a Chebyshev series at each x by Clenshaw's recurrence."""
    last, before = np.zeros_like(x), np.zeros_like(x)
    for coefficient in series[:0:-1]:
        last, before = 2 * x * last - before + coefficient, last
    y: Array = x * last - before + series[0]
    return y


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": gelu_new,
    "gelu": gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "tanh": tanh,
}
"""The functions that `activation_function` in a config.json can name."""
