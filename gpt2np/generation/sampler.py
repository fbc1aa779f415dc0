"""Logits → the next id."""

from __future__ import annotations

import os
from collections import deque
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt2np.generation.filters import (
    apply_temperature,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.options import GenerationOptions
from gpt2np.model.ops import softmax

Array = NDArray[Any]


def new_seed() -> int:
    """A seed that nobody can foretell, from 0 on, below 2³²."""
    return int.from_bytes(os.urandom(4), "little")


class Draws(Protocol):
    """A source of random numbers: numpy's Generator, or a RandomStream."""

    def random(self) -> float:
        """A number from 0 on, below 1."""


class RandomStream:
    """The random numbers of one sequence, one for each id; those to come can be looked at.

    They are those of `numpy.random.default_rng(seed)`, in their order.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._seen: deque[float] = deque()

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)  # greedy choices need not wait for its import

    def random(self) -> float:
        """The next number, which is used up."""
        return self._seen.popleft() if self._seen else self._generator.random()

    def after(self, numbers: int) -> Draws:
        """What will come after so many further numbers, to be looked at and not used up."""
        return _Preview(self, numbers)

    def coming(self, place: int) -> float:
        """The number that the call number `place`, from 0, of `random` will give."""
        while len(self._seen) <= place:
            self._seen.append(self._generator.random())
        return self._seen[place]


class _Preview:
    def __init__(self, stream: RandomStream, place: int) -> None:
        self._stream = stream
        self._place = place

    def random(self) -> float:
        self._place += 1
        return self._stream.coming(self._place - 1)


def next_probabilities(logits: Array, options: GenerationOptions) -> Array:
    """The distribution of the next id: logits (…, V) → probabilities (…, V), float64.

    For temperature 0 all of it lies on the highest logit, the first of equal ones.
    """
    if options.temperature == 0:
        chosen = np.argmax(logits, -1, keepdims=True)
        certain: Array = np.arange(logits.shape[-1]) == chosen
        return certain.astype(np.float64)
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


def next_id(logits: Array, options: GenerationOptions, rng: Draws) -> int:
    """One id drawn from logits (V), with one random number from `rng`; greedy draws none."""
    if options.temperature == 0:
        return int(np.argmax(logits))
    cumulative = np.cumsum(next_probabilities(logits, options))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
