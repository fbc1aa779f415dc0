"""Checkers of the exercises in 9_it_learns.ipynb."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax


def central_difference(
    answer: Callable[[Callable[[float], float], float, float], float],
) -> str | None:
    def cube(x: float) -> float:
        return x**3

    result = answer(cube, 2.0, 0.5)
    if result is None:
        return "Compare f(x + step) with f(x - step)."
    if math.isclose(result, (cube(2.5) - cube(2.0)) / 0.5):
        return "A step to one side only: go down by the step, too."
    expected = cube(2.5) - cube(1.5)
    if not math.isclose(result, expected):
        return f"For x³ at 2 with step 0.5: {expected}, not {result}."
    return None


def logits_gradient(answer: Callable[[Array, Array], Array]) -> str | None:
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(3, 5)), np.array([1, 4, 4])
    result = answer(logits.copy(), targets)
    if result is None:
        return "Begin with the probabilities, softmax(logits)."
    expected = softmax(logits)
    expected[np.arange(3), targets] -= 1
    if np.shape(result) != (3, 5):
        return f"The shape must be that of the logits, (3, 5), not {np.shape(result)}."
    if np.allclose(result, expected):
        return "The mean loss: divide by the number of tokens."
    if not np.allclose(result, expected / 3):
        return "Subtract 1 at each correct token from the probabilities; divide by n."
    return None


def clipped(answer: Callable[[Sequence[Array], float], Sequence[Array]]) -> str | None:
    gradients = [np.array([3.0, 0.0]), np.array([[4.0]])]  # norm 5
    for max_norm, factor in ((1.0, 0.2), (10.0, 1.0)):
        result = answer([g.copy() for g in gradients], max_norm)
        if result is None:
            return "The norm is the root of the sum of all squares, of all arrays."
        expected = [factor * g for g in gradients]
        if not all(np.allclose(a, b) for a, b in zip(result, expected, strict=True)):
            return f"Norm 5, max_norm {max_norm}: one common factor, {factor}."
    return None
