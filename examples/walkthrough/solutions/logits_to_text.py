"""Solutions of the exercises in 6_logits_to_text.ipynb."""

import math
from collections.abc import Sequence

import numpy as np

from gpt2np import GenerationOptions
from gpt2np.generation.logits_processors import apply_temperature, top_p_filter
from gpt2np.generation.sampling import next_probabilities
from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax


def discarded_mass(logits: Array, p: float) -> float:
    removed = np.isneginf(top_p_filter(logits, p))
    return float(softmax(logits)[removed].sum())


def ban(logits: Array, ids: Sequence[int]) -> Array:
    result = logits.copy()
    result[list(ids)] = -math.inf
    return result


def find_temperature(logits: Array, probability: float) -> float:
    low, high = 0.01, 100.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if softmax(apply_temperature(logits, middle)).max() > probability:
            low = middle
        else:
            high = middle
    return low


def surprise_in_bits(logits: Array, number: int, options: GenerationOptions) -> float:
    probability = next_probabilities(logits, options)[number]
    return -math.log2(probability) if probability > 0 else math.inf
