"""The functions that GPT-2 is made of. Arrays in, arrays out; the result has the inputs' dtype.

Shape letters: C channels.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    """Each row of x (…, C) brought to mean 0 and variance 1, times weight (C), plus bias (C).

    Ba et al. 2016; the variance is the biased one, as in torch.nn.LayerNorm.
    """
    centred: Array = x - np.add.reduce(x, -1, keepdims=True) / x.shape[-1]
    variance = np.add.reduce(centred * centred, -1, keepdims=True) / x.shape[-1]
    centred /= np.sqrt(variance + epsilon)
    centred *= weight
    centred += bias
    return centred


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
