"""Sampling: select the next token id from logits; compute log probabilities of tokens.

Log probabilities come from the unprocessed logits, before penalties and filters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpt2np.generation.logits_processors import active_filters, filter_logits
from gpt2np.generation.options import GenerationOptions
from gpt2np.kernels import exact
from gpt2np.kernels.array import Array, IntArray
from gpt2np.model.ops import exp_and_row_sums, softmax


def new_seed() -> int:
    """Return an unpredictable seed, 0 ≤ seed < 2³²."""
    return int.from_bytes(os.urandom(4), "little")


class RandomGenerator:
    """The random numbers of one sequence, from `numpy.random.default_rng(seed)`.

    Sampling token i uses number i, so an interrupted decode step samples the same token again.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._numbers = np.empty(0)

    def number(self, index: int) -> float:
        """Return random number `index`, counted from 0."""
        if index >= len(self._numbers):
            # NumPy imports its module `random` here, in 20 ms, which greedy decoding does not need.
            self._numbers = np.random.default_rng(self._seed).random(2 * index + 64)
        return float(self._numbers[index])


@np.errstate(under="ignore")
def next_probabilities(logits: Array, options: GenerationOptions) -> Array:
    """Compute the probabilities of the next token from logits (…, V). Returns (…, V), float64.

    At temperature 0, the token with the highest logit has probability 1; ties go to the lowest id.
    """
    if options.temperature == 0:
        most_likely = np.argmax(logits, -1, keepdims=True)
        one_hot: Array = np.arange(logits.shape[-1]) == most_likely
        return one_hot.astype(np.float64)
    return softmax(filter_logits(logits, options), np.float64)


@np.errstate(under="ignore")
def next_id(logits: Array, options: GenerationOptions, random: Callable[[], float]) -> int:
    """Select the next token id from logits (V,).

    Sampling calls `random` once, for a uniform random number, 0 ≤ x < 1.
    """
    if options.temperature == 0:
        return int(logits.argmax())
    if active_filters(options) == ["top_k"]:
        candidates = top_k_candidates(logits, options.top_k)
        return int(candidates[_sample(logits[candidates], options, random)])
    return _sample(logits, options, random)


def top_k_candidates(logits: Array, k: int) -> IntArray:
    """Return the ids that the top-k filter may keep after the temperature, in ascending order.

    These are usually few more than k, and the other logits need no further computation. The k-th
    highest logit is at least the k-th highest maximum of any disjoint groups of logits.
    """
    n_groups = 16 * k
    if len(logits) < 2 * n_groups:
        return np.arange(len(logits))
    maxima = logits[: len(logits) // n_groups * n_groups].reshape(-1, n_groups).max(0)
    bound = np.partition(maxima, -k)[-k]
    margin = 1e-5 * (logits.max() - bound)  # the temperature may round close logits to equal ones
    return np.flatnonzero(logits >= bound - margin)


def _sample(logits: Array, options: GenerationOptions, random: Callable[[], float]) -> int:
    logits = filter_logits(logits, options)
    ids = (logits > -np.inf).nonzero()[0]  # often few, which saves time below
    cumulative = softmax(logits[ids], np.float64).cumsum()
    index = cumulative.searchsorted(random() * cumulative[-1], side="right")
    return int(ids[min(index, len(ids) - 1)])


@dataclass(frozen=True)
class TokenLogprob:
    """The natural log probability of one token, given the tokens before it.

    `top` lists (token id, log probability) of the most likely tokens at the position, best first.
    `rank` is 1 for the most likely token.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 1


@np.errstate(under="ignore")
def log_softmax(logits: Array) -> Array:
    """Compute log probabilities from logits (…, V). Returns (…, V), float64."""
    exp, row_sums = exp_and_row_sums(logits.dtype)
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    shifted -= exact.log(row_sums(exp(shifted)))
    return shifted


def token_logprob(logits: Array, token_id: int, top: int) -> TokenLogprob:
    """Compute log probabilities of `token_id` and the `top` most likely ids from logits (V,).

    Among equal logits, the lower id comes first.
    """
    logprobs = log_softmax(logits)
    most_likely: list[tuple[int, float]] = []
    if top:
        top = min(top, len(logits))
        candidates = np.flatnonzero(logits >= np.partition(logits, -top)[-top])
        order = candidates[np.argsort(-logits[candidates], kind="stable")][:top]
        most_likely = [(int(i), float(logprobs[i])) for i in order]
    rank = 1 + int(np.count_nonzero(logits > logits[token_id]))
    return TokenLogprob(int(token_id), float(logprobs[token_id]), tuple(most_likely), rank)
