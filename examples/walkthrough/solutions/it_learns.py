"""Solutions of the exercises in 9_it_learns.ipynb."""

from collections.abc import Callable, Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax


def central_difference(f: Callable[[float], float], x: float, step: float) -> float:
    return (f(x + step) - f(x - step)) / (2 * step)


def logits_gradient(logits: Array, targets: Array) -> Array:
    d = softmax(logits)
    d[np.arange(len(targets)), targets] -= 1
    return d / len(targets)


def clipped(gradients: Sequence[Array], max_norm: float) -> list[Array]:
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    return [g * min(1.0, max_norm / norm) for g in gradients]
