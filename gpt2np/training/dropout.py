"""Dropout (Srivastava et al. 2014), as a hook with a gradient."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.training.options import TrainerOptions


def dropout_rates(options: TrainerOptions) -> dict[str, float]:
    """Return the probability of dropout by the last part of the hook point's name."""
    return {
        "embed": options.embd_pdrop,
        "pattern": options.attn_pdrop,
        "out": options.resid_pdrop,
    }


class Dropout:
    """A hook that sets random values to zero, and scales the others so that the mean stays.

    The mask of an array follows from the seed, the array's name and, for attention patterns, the
    number of the text. The backward pass therefore draws the same masks again.
    """

    def __init__(self, options: TrainerOptions, seed: list[int], n_texts: int) -> None:
        self._rates, self._seed, self._n_texts = dropout_rates(options), seed, n_texts
        self._calls: Counter[tuple[str, str]] = Counter()

    def edits(self, name: str) -> bool:
        """Tell whether the array of this name has dropout."""
        return self._rates.get(name.rpartition(".")[2], 0.0) > 0

    def __call__(self, name: str, array: Array) -> Array:
        """Return the array times its mask."""
        return self._masked("forward", name, array)

    def gradient(self, name: str, d: Array) -> Array:
        """Return the gradient of the array before dropout."""
        return self._masked("backward", name, d)

    def _masked(self, direction: str, name: str, array: Array) -> Array:
        if not self.edits(name):
            return array
        rate = self._rates[name.rpartition(".")[2]]
        text = 0
        if name.endswith("pattern"):  # each pass shows the texts in order
            text = self._calls[direction, name] % self._n_texts
            self._calls[direction, name] += 1
        rng = np.random.default_rng([*self._seed, crc32(name.encode()), text])
        kept = rng.random(array.shape, np.float32) >= rate
        masked: Array = array * kept
        masked *= 1 / (1 - rate)
        return masked
