"""Logits → the next id."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.generation.filters import apply_temperature, top_k_filter, top_p_filter
from gpt2np.generation.options import GenerationOptions
from gpt2np.model.functions import softmax

Array = NDArray[Any]


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
    return softmax(logits.astype(np.float64))


def next_id(logits: Array, options: GenerationOptions, rng: np.random.Generator) -> int:
    """One id drawn from logits (V), with one random number from `rng`; greedy draws none."""
    if options.temperature == 0:
        return int(np.argmax(logits))
    cumulative = np.cumsum(next_probabilities(logits, options))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
