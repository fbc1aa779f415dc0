"""Checkers of the exercises in 6_logits_to_text.ipynb."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from checks.examples import bundled, story_ids
from gpt2np import GenerationOptions
from gpt2np.generation.logits_processors import apply_temperature, top_p_filter
from gpt2np.generation.sampling import next_probabilities
from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax


def _logits() -> Array:
    ids = story_ids(40)
    return bundled().model.forward([ids], logits_indices=[3, 20, 39])


def discarded_mass(answer: Callable[[Array, float], float]) -> str | None:
    for logits in _logits():
        for p in (0.5, 0.9):
            result = answer(logits, p)
            if result is None:
                return "Sum the probabilities of the tokens whose logits top_p_filter sets to -inf."
            expected = softmax(logits)[np.isneginf(top_p_filter(logits, p))].sum()
            if abs(result - expected) > 1e-4:
                return f"For p = {p}, expected {expected:.4f} in one case, got {result:.4f}."
    return None


def ban(answer: Callable[[Array, Sequence[int]], Array]) -> str | None:
    logits = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    result = answer(logits, [1, 3])
    if logits.tolist() != [1, 2, 3, 4]:
        return "Work on a copy: the function has modified its argument."
    if result is None:
        return (
            "Copy the logits, set those of the ids to -math.inf, and return the copy."
        )
    if np.shape(result) != (4,) or np.asarray(result).tolist() != [
        1,
        -math.inf,
        3,
        -math.inf,
    ]:
        return f"Expected [1, -inf, 3, -inf] without the ids 1 and 3, got {np.asarray(result)}."
    return None


def find_temperature(answer: Callable[[Array, float], float]) -> str | None:
    for logits in _logits():
        for probability in (0.3, 0.9):
            result = answer(logits, probability)
            if result is None:
                return "A higher temperature makes the top token less likely; use bisection."
            if not 0.005 < result < 200:
                return f"Expected a temperature between 0.01 and 100, got {result}."
            low, high = (
                softmax(apply_temperature(logits, t)).max()
                for t in (1.01 * result, result / 1.01)
            )
            if not low <= probability <= high:
                reached = softmax(apply_temperature(logits, result)).max()
                return (
                    f"At {result:.3f}, the most likely token has the probability {reached:.4f}, "
                    f"not {probability}; the temperature is off by more than 1 %."
                )
    return None


def surprise_in_bits(
    answer: Callable[[Array, int, GenerationOptions], float],
) -> str | None:
    plain = GenerationOptions(temperature=1, top_k=0)
    narrow = GenerationOptions(temperature=0.7, top_k=3)
    for logits in _logits():
        order = np.argsort(-logits)
        for number, options in (
            (order[0], plain),
            (order[1], narrow),
            (order[5], narrow),
        ):
            result = answer(logits, int(number), options)
            if result is None:
                return "next_probabilities(logits, options) returns the probabilities."
            probability = next_probabilities(logits, options)[number]
            expected = -math.log2(probability) if probability else math.inf
            if result != expected and not abs(result - expected) < 1e-3:
                return f"A token with the probability {probability:.4f} costs {expected:.3f} bits."
    return None
