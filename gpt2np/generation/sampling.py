"""Sampling: logits of one sequence → the next token id."""

from __future__ import annotations

import os
from collections import deque
from functools import cached_property
from typing import Protocol

import numpy as np

from gpt2np.generation.logits_processors import (
    apply_temperature,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.options import GenerationOptions
from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax


def new_seed() -> int:
    """Return an unpredictable seed, 0 ≤ seed < 2³²."""
    return int.from_bytes(os.urandom(4), "little")


class SupportsRandom(Protocol):
    """Source of uniform random numbers: numpy's Generator, or a RandomGenerator."""

    def random(self) -> float:
        """Return the next number, from 0 to below 1."""


class RandomGenerator:
    """Uniform random numbers of one sequence, with look-ahead.

    The numbers are those of `numpy.random.default_rng(seed)`. A sampled token uses one of them.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._peeked: deque[float] = deque()

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)  # imports numpy.random, 20 ms: not for greedy

    def random(self) -> float:
        """Return the next number and consume it."""
        return self._peeked.popleft() if self._peeked else self._generator.random()

    def peek(self, index: int) -> float:
        """Return the number that call `index`, from 0, of `random` will return."""
        while len(self._peeked) <= index:
            self._peeked.append(self._generator.random())
        return self._peeked[index]

    def lookahead(self, skip: int) -> SupportsRandom:
        """A view of the numbers after the next `skip`; reading the view consumes none of them."""
        return _Lookahead(self, skip)


class _Lookahead:
    def __init__(self, generator: RandomGenerator, index: int) -> None:
        self._generator = generator
        self._index = index

    def random(self) -> float:
        self._index += 1
        return self._generator.peek(self._index - 1)


def next_probabilities(logits: Array, options: GenerationOptions) -> Array:
    """Return the distribution of the next token: logits (…, V) → probabilities (…, V), float64.

    At temperature 0 the first of the highest logits has probability 1.
    """
    if options.temperature == 0:
        most_likely = np.argmax(logits, -1, keepdims=True)
        one_hot: Array = np.arange(logits.shape[-1]) == most_likely
        return one_hot.astype(np.float64)
    logits = apply_temperature(logits, options.temperature)
    if options.top_k:
        logits = top_k_filter(logits, options.top_k)
    if options.top_p < 1:
        logits = top_p_filter(logits, options.top_p)
    if options.min_p:
        logits = min_p_filter(logits, options.min_p)
    if options.typical_p < 1:
        logits = typical_filter(logits, options.typical_p)
    return softmax(logits.astype(np.float64))


def next_id(logits: Array, options: GenerationOptions, rng: SupportsRandom) -> int:
    """Select the next id from logits (V,), with one random number; greedy needs none."""
    if options.temperature == 0:
        return int(logits.argmax())
    cumulative = next_probabilities(logits, options).cumsum()
    return int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
