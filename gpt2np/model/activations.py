"""The activation functions of the MLP that a config can choose. GPT-2's own is `gelu_new`."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.model.ops import gelu_new

Array = NDArray[Any]


def gelu(x: Array) -> Array:
    """GELU as it is defined, x·Φ(x) with the normal distribution's Φ (Hendrycks & Gimpel 2016).

    That is max(x, 0) - |x|·Φ(-|x|), without cancellation. NumPy has no erf; of the tail, Φ(-z√2) =
    ½·erfc(z) = ½·t·exp(p - z²) with t = 2 / (2 + z), where p is smooth and known by a short series.
    """
    size = np.abs(x)
    z = size * math.sqrt(0.5)
    t = 2 / (2 + z)
    y = _sum_of(_erfc_series(20 if x.dtype == np.float64 else 10), 2.4 * t - 1.4)
    z *= z
    y -= z
    np.exp(y, out=y)
    t *= size
    t *= -0.5
    y *= t
    y += np.maximum(x, 0)
    return y


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), also called swish (Elfwing et al. 2017), elementwise."""
    y: Array = np.negative(x)
    with np.errstate(over="ignore"):  # exp → inf, and x / inf is the right limit, 0
        np.exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)
    return y


def relu(x: Array) -> Array:
    """max(x, 0), elementwise."""
    y: Array = np.maximum(x, 0)
    return y


def tanh(x: Array) -> Array:
    """The hyperbolic tangent, elementwise."""
    y: Array = np.tanh(x)
    return y


@cache
def _erfc_series(terms: int) -> list[float]:
    """Chebyshev coefficients of log(erfc(z) / t) + z², 0 ≤ z ≤ 10, over 2.4·t - 1.4 = -1 … 1."""

    from numpy.polynomial import Chebyshev  # not for every model to wait for

    def smooth(points: Array) -> Array:
        ts = [(point + 1.4) / 2.4 for point in points.tolist()]
        return np.array([math.log(math.erfc(2 / t - 2) / t) + (2 / t - 2) ** 2 for t in ts])

    return list(map(float, Chebyshev.interpolate(smooth, terms - 1).coef))


def _sum_of(series: list[float], x: Array) -> Array:
    """The Chebyshev series at each of x, by Clenshaw's recurrence."""
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
"""What `activation_function` in a config.json can name, by the names of `transformers`."""
