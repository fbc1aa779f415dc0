"""AdamW (Loshchilov & Hutter 2019), gradient clipping, and the schedule of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.threads import parallel_for
from gpt2np.training.options import TrainerOptions

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.95, 1e-8  # as of GPT-3 (Brown et al. 2020, appendix B)
_CHUNK = 1 << 16  # values updated at a time, so that they stay in the cache


class AdamW:
    """The weights, updated in place, and the running means of gradients and of their squares.

    The weights must be C-contiguous: the update goes through flat views.
    """

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights, self.step = weights, 0
        self.first, self.second = (
            {name: np.zeros_like(array) for name, array in weights.items()} for _ in range(2)
        )

    def update(self, gradients: Mapping[str, Array], rate: float, options: TrainerOptions) -> float:
        """Take a step with learning rate `rate`. Returns the norm of all gradients.

        If the norm exceeds `max_grad_norm`, the gradients are scaled to this norm. Matrices and
        embeddings decay by `rate` times `weight_decay`, biases and layer norms do not.
        """
        self.step += 1
        norm = gradient_norm(gradients)
        clip = min(1.0, options.max_grad_norm / (norm + 1e-6))
        step_size = rate / (1 - _BETA_1**self.step)
        root = math.sqrt(1 - _BETA_2**self.step)

        def run(part: tuple[str, slice]) -> None:
            name, rows = part
            w, m, v = (a[name].reshape(-1)[rows] for a in (self.weights, self.first, self.second))
            g = gradients[name].reshape(-1)[rows] * clip
            if self.weights[name].ndim == 2:
                w *= 1 - rate * options.weight_decay
            m *= _BETA_1
            m += g * (1 - _BETA_1)
            v *= _BETA_2
            g *= g
            g *= 1 - _BETA_2
            v += g
            np.sqrt(v, out=g)
            g /= root
            g += _EPSILON
            np.divide(m, g, out=g)
            g *= step_size
            w -= g

        parallel_for(run, _parts(gradients), python_threads())
        return norm


def gradient_norm(gradients: Mapping[str, Array]) -> float:
    """Return the Euclidean norm of all gradients together."""
    squares: list[float] = []  # in any order; their exact sum is the same

    def run(part: tuple[str, slice]) -> None:
        values = gradients[part[0]].reshape(-1)[part[1]]
        squares.append(float(values @ values))

    parallel_for(run, _parts(gradients), python_threads())
    return math.sqrt(math.fsum(squares))


def _parts(arrays: Mapping[str, Array]) -> list[tuple[str, slice]]:
    return [
        (name, slice(start, min(array.size, start + _CHUNK)))
        for name, array in arrays.items()
        for start in range(0, array.size, _CHUNK)
    ]


def learning_rate(step: int, options: TrainerOptions) -> float:
    """Return the learning rate of the step after `step` steps: linear warm-up, then a cosine."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    progress = (step - options.warmup_steps) / max(1, options.max_steps - options.warmup_steps)
    return options.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
