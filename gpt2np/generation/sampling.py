"""Sampling: logits of one sequence → the next token id, and log probabilities of tokens.

Log probabilities are the model's own, before penalties and filters.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from gpt2np.generation.logits_processors import (
    apply_temperature,
    compute_logits,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.options import GenerationOptions
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache
from gpt2np.model.ops import softmax

_CHUNK = 64  # tokens whose logits are in memory at a time


def new_seed() -> int:
    """Return an unpredictable seed, 0 ≤ seed < 2³²."""
    return int.from_bytes(os.urandom(4), "little")


class SupportsRandom(Protocol):
    """Source of uniform random numbers, 0 ≤ x < 1: numpy's Generator, or a RandomGenerator."""

    def random(self) -> float: ...


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


@dataclass
class _Lookahead:
    generator: RandomGenerator
    index: int

    def random(self) -> float:
        self.index += 1
        return self.generator.peek(self.index - 1)


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


@dataclass(frozen=True)
class TokenLogprob:
    """The natural log probability of one token, given the tokens before it.

    `top` holds the most likely tokens at its position with theirs, the most likely first.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: Array) -> Array:
    """Return log probabilities: logits (…, V) → (…, V), float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def token_logprob(logits: Array, token_id: int, top: int) -> TokenLogprob:
    """Return the log probability of an id in logits (V,), with the `top` most likely ids.

    Among equal logits the lower id comes first.
    """
    logprobs = log_softmax(logits)
    most_likely: list[tuple[int, float]] = []
    if top:
        top = min(top, len(logits))
        candidates = np.flatnonzero(logits >= np.partition(logits, -top)[-top])
        order = candidates[np.argsort(-logits[candidates], kind="stable")][:top]
        most_likely = [(int(i), float(logprobs[i])) for i in order]
    return TokenLogprob(int(token_id), float(logprobs[token_id]), tuple(most_likely))


def text_logprobs(model: GPT2, ids: Sequence[int], top: int, cache: KVCache) -> list[TokenLogprob]:
    """Return the log probability of each of ids[1:], with the `top` most likely ids.

    Afterwards the empty `cache` holds the keys and values of ids[:-1].

    Raises:
        CheckpointError: the logits are infinite or NaN.
    """
    logprobs = []
    for start in range(0, len(ids) - 1, _CHUNK):
        stop = min(start + _CHUNK, len(ids) - 1)
        logits = compute_logits(model, [ids[start:stop]], [cache])
        targets = ids[start + 1 : stop + 1]
        logprobs += [token_logprob(row, i, top) for row, i in zip(logits, targets, strict=True)]
    return logprobs
