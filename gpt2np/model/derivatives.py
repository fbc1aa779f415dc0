"""Derivatives of the functions in `gpt2np.model.ops`. Results have the dtype of the arguments.

Shape letters: N tokens, C channels, V vocabulary, h heads, n queries, T keys.
"""

import math
from collections.abc import Callable

import numpy as np

from gpt2np.kernels.array import Array, IntArray
from gpt2np.model.ops import GELU_SCALE, allow_limits, gelu


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
def softmax_backward(d: Array, p: Array) -> Array:
    """Return the gradient of the scores (h, n, T), from that of their softmax p. Overwrites d."""
    d -= np.einsum("...t,...t->...", d, p)[..., None]
    d *= p
    return d


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
def gelu_derivative(x: Array) -> Array:
    """Return the derivative of exact GELU: Φ(x) + x·φ(x), with the normal density φ."""
    y: Array = np.divide(gelu(x), x, out=np.full_like(x, 0.5), where=x != 0)  # Φ(x)
    y += x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return y


@allow_limits
def silu_derivative(x: Array) -> Array:
    """Return the derivative of SiLU: s·(1 + x·(1 - s)), where s = sigmoid(x)."""
    s = 1 / (1 + np.exp(-x))
    y: Array = s * (1 + x * (1 - s))
    return y


def relu_derivative(x: Array) -> Array:
    """Return 1 for positive x, else 0."""
    y: Array = (x > 0).astype(x.dtype)
    return y


@allow_limits
def tanh_derivative(x: Array) -> Array:
    """Return 1 - tanh²(x)."""
    y: Array = 1 - np.square(np.tanh(x))
    return y


DERIVATIVES: dict[str, Callable[[Array], Array]] = {
    "gelu_new": gelu_new_derivative,
    "gelu_pytorch_tanh": gelu_new_derivative,
    "gelu": gelu_derivative,
    "relu": relu_derivative,
    "silu": silu_derivative,
    "swish": silu_derivative,
    "tanh": tanh_derivative,
}
"""The derivatives of `gpt2np.model.ops.ACTIVATIONS`."""
