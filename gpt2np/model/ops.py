"""GPT-2's mathematical functions on arrays, with their derivatives, in the arguments' dtype.

In float64, the forward pass takes exp, tanh, erf and sums of rows from `gpt2np.kernels.exact`, with
the same bits on every machine. In float32, and in losses, they are NumPy's, which are faster.

Shape letters: N tokens, C channels, V vocabulary, h heads, n queries, T keys.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels import exact
from gpt2np.kernels.array import Array, BoolArray, IntArray
from gpt2np.kernels.matmul import row_sums

GELU_SCALE = 2 * math.sqrt(2 / math.pi)

# p(v) in `gelu`, the highest power first. It interpolates (log(erfc(z) / (1 - v)) + z²) / v with
# z = 2·v / (1 - v), at 8 Chebyshev nodes for 0 ≤ z ≤ 10.
_ERFC_POLYNOMIAL = (
    0.127219134919247, -0.22932215284467428, -0.008855441383260674, 0.05309575208778515,
    0.19105891771987998, 0.16185674420135301, -0.3032580887424964, -1.256758194547278,
)  # fmt: skip

# A result too small for the dtype becomes 0, whatever the caller's np.seterr. exp may become
# infinite: x / inf is the right limit. `GPT2.forward` allows underflow once for all calls of
# `layer_norm` and `causal_softmax`.
allow_limits = np.errstate(over="ignore", under="ignore")


@cache
def exp_and_row_sums(dtype: np.dtype[Any]) -> tuple[Callable[..., Array], Callable[[Array], Array]]:
    """Return exp and row_sums: exact for float64, else NumPy's, which are faster."""
    if dtype == np.float64:
        return exact.exp, exact.row_sums
    return np.exp, partial(np.add.reduce, axis=-1, keepdims=True)


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    """Normalize each row to mean 0 and variance 1, then multiply by `weight` and add `bias`.

    Ba et al. 2016. The variance is divided by C, not C - 1, as in torch.nn.LayerNorm. Takes
    x (…, C), weight (C,) and bias (C,).
    """
    _, row_sums = exp_and_row_sums(x.dtype)
    centered: Array = x - row_sums(x) / x.shape[-1]
    centered -= row_sums(centered) / x.shape[-1]  # the mean's rounding
    variance = row_sums(centered * centered) / x.shape[-1]
    centered /= np.sqrt(variance + epsilon)
    centered *= weight
    centered += bias
    return centered


def layer_norm_backward(
    d: Array, x: Array, weight: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Return the gradients of x (N, C), weight (C,) and bias (C,) of a layer norm.

    `d` (N, C) is the gradient of the layer norm's output.
    """
    normed = x - x.mean(-1, keepdims=True)
    normed -= normed.mean(-1, keepdims=True)  # the mean's rounding, as in the forward pass
    variance = np.square(normed).mean(-1, keepdims=True)
    std = np.sqrt(variance + epsilon)
    normed /= std
    product = d * normed
    d_weight = product.sum(0)
    d_x: Array = d * weight
    np.multiply(d_x, normed, out=product)
    normed *= product.mean(-1, keepdims=True)
    d_x -= d_x.mean(-1, keepdims=True)
    d_x -= normed
    d_x /= std
    return d_x, d_weight, d.sum(0)


@allow_limits
def softmax(x: Array, dtype: DTypeLike | None = None) -> Array:
    """Return the softmax of each row of x (…, n), in `dtype` (default: that of x).

    A value of -inf gives exactly 0.
    """
    exp, row_sums = exp_and_row_sums(x.dtype)
    y: Array = x.astype(dtype or x.dtype)
    y -= y.max(-1, keepdims=True)
    exp(y, out=y)
    y /= row_sums(y)
    return y


def causal_softmax(scores: Array, mask: BoolArray) -> Array:
    """Turn scores (h, n, T) into the attention pattern, in place.

    `mask` (n, m) covers the last m keys: True where a key follows the query. Every query attends to
    the first T - m keys. Masked keys get exactly 0. A row's bits do not depend on other rows.
    """
    if mask.size:
        last_keys = scores[..., scores.shape[-1] - mask.shape[-1] :]
        np.copyto(last_keys, -math.inf, where=mask)
    exp, _ = exp_and_row_sums(scores.dtype)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    exp(scores, out=scores)
    scores /= exact.row_sums(scores) if scores.dtype == np.float64 else row_sums(scores)
    return scores


def causal_mask(n: int, n_keys: int) -> BoolArray:
    """Return the mask (n, T) of the last n of T tokens: True where a key follows the query."""
    return np.arange(n_keys) > np.arange(n_keys - n, n_keys)[:, None]


@allow_limits
def softmax_backward(d: Array, p: Array) -> Array:
    """Return the gradient of the scores (h, n, T), from that of their softmax p. Overwrites d."""
    d -= np.einsum("...t,...t->...", d, p)[..., None]
    d *= p
    return d


@allow_limits
def gelu_new(x: Array) -> Array:
    """Return GELU in the tanh form that GPT-2 uses (Hendrycks & Gimpel 2016, section 2).

    The form ½·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³) equals x / (1 + exp(-2u)). The
    quotient is faster to compute, and avoids the cancellation in 1 + tanh u for negative x.
    """
    exp, _ = exp_and_row_sums(x.dtype)
    u = x * x
    u *= -GELU_SCALE * 0.044715
    u -= GELU_SCALE
    u *= x
    exp(u, out=u)
    u += 1
    y: Array = np.divide(x, u, out=u)
    return y


@allow_limits
def gelu_new_derivative(x: Array) -> Array:
    """Return the derivative of `gelu_new`: s + x·s·(1 - s)·u', where y = x·s and s = sigmoid(u)."""
    square = x * x
    u = square * (-GELU_SCALE * 0.044715)
    u -= GELU_SCALE
    u *= x
    np.exp(u, out=u)  # exp(-u)
    u += 1
    s: Array = np.divide(1, u, out=u)
    square *= 3 * GELU_SCALE * 0.044715
    square += GELU_SCALE  # u'
    square *= x
    square *= 1 - s
    square += 1
    s *= square
    return s


@allow_limits
def gelu(x: Array) -> Array:
    """Return exact GELU, x·Φ(x), where Φ is the normal distribution's cumulative function.

    Hendrycks & Gimpel 2016. The form max(x, 0) - |x|·Φ(-|x|) avoids cancellation. NumPy has no
    erfc. Therefore Φ(-|x|) = ½·erfc(z) is computed as ½·(1 - v)·exp(v·p(v) - z²). Here
    z = |x| / √2, v = z / (2 + z), and p is a polynomial. For small z, all rounding errors are
    small.
    """
    if x.dtype == np.float64:
        product: Array = 0.5 * x * (1 + exact.erf(x * math.sqrt(0.5)))
        return product
    size = np.abs(x)
    z = size * math.sqrt(0.5)
    v = z / (z + 2)
    highest, *lower = _ERFC_POLYNOMIAL
    y = np.full_like(x, highest)
    for coefficient in lower:  # Horner's scheme
        y *= v
        y += coefficient
    y *= v
    z *= z
    y -= z
    np.exp(y, out=y)
    np.subtract(1, v, out=v)
    v *= size
    v *= -0.5
    y *= v
    y += np.maximum(x, 0)
    return y


@allow_limits
def gelu_derivative(x: Array) -> Array:
    """Return the derivative of exact GELU: Φ(x) + x·φ(x), with the normal density φ."""
    y: Array = np.divide(gelu(x), x, out=np.full_like(x, 0.5), where=x != 0)  # Φ(x)
    y += x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return y


@allow_limits
def silu(x: Array) -> Array:
    """Return x / (1 + exp(-x)), also called swish (Elfwing et al. 2017)."""
    exp, _ = exp_and_row_sums(x.dtype)
    y: Array = np.negative(x)
    exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)
    return y


@allow_limits
def silu_derivative(x: Array) -> Array:
    """Return the derivative of SiLU: s·(1 + x·(1 - s)), where s = sigmoid(x)."""
    s = 1 / (1 + np.exp(-x))
    y: Array = s * (1 + x * (1 - s))
    return y


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    y: Array = np.maximum(x, 0)
    return y


def relu_derivative(x: Array) -> Array:
    """Return 1 for positive x, else 0."""
    y: Array = (x > 0).astype(x.dtype)
    return y


@allow_limits
def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    y: Array = exact.tanh(x) if x.dtype == np.float64 else np.tanh(x)
    return y


@allow_limits
def tanh_derivative(x: Array) -> Array:
    """Return 1 - tanh²(x)."""
    y: Array = 1 - np.square(np.tanh(x))
    return y


@allow_limits
def cross_entropy(logits: Array, targets: IntArray, weight: float) -> Array:
    """Return the loss of each target in nats, (N,). Overwrites the logits (N, V).

    The logits become their gradient, where the loss is `weight` times the sum of the losses.
    """
    rows = np.arange(len(targets))
    logits -= logits.max(-1, keepdims=True)
    losses: Array = -logits[rows, targets]
    np.exp(logits, out=logits)
    sums = logits.sum(-1, keepdims=True)
    losses += np.log(sums[:, 0])
    logits *= weight / sums
    logits[rows, targets] -= weight
    return losses


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

DERIVATIVES: dict[Callable[[Array], Array], Callable[[Array], Array]] = {
    gelu_new: gelu_new_derivative,
    gelu: gelu_derivative,
    relu: relu_derivative,
    silu: silu_derivative,
    tanh: tanh_derivative,
}
"""The derivative of each activation function."""
