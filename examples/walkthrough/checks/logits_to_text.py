"""Checkers of the exercises in 6_logits_to_text.ipynb."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.examples import bundled, story_ids
from gpt2np import GenerationOptions
from gpt2np.generation import apply_temperature, next_probabilities, top_p_filter
from gpt2np.model.ops import softmax

Array = NDArray[Any]


def _logits() -> Array:
    ids = story_ids(40)
    return bundled().model.forward([ids], logits_indices=[3, 20, 39])


def discarded_mass(answer: Callable[[Array, float], float]) -> str | None:
    for logits in _logits():
        for p in (0.5, 0.9):
            found = answer(logits, p)
            if found is None:
                return "What top_p_filter sets to -inf is thrown away; sum its probability before."
            right = softmax(logits)[np.isneginf(top_p_filter(logits, p))].sum()
            if abs(found - right) > 1e-4:
                return f"For p = {p} it was {right:.4f} in one case, not {found:.4f}."
    return None


def ban(answer: Callable[[Array, Sequence[int]], Array]) -> str | None:
    logits = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    found = answer(logits, [1, 3])
    if logits.tolist() != [1, 2, 3, 4]:
        return "Work on a copy: the array that you were given has changed."
    if found is None:
        return (
            "Copy the logits, set those of the ids to -math.inf, and return the copy."
        )
    if np.shape(found) != (4,) or np.asarray(found).tolist() != [
        1,
        -math.inf,
        3,
        -math.inf,
    ]:
        return (
            f"The logits 1, 2, 3, 4 without the ids 1 and 3 became {np.asarray(found)}."
        )
    return None


def temperature_for(answer: Callable[[Array, float], float]) -> str | None:
    for logits in _logits():
        for share in (0.3, 0.9):
            found = answer(logits, share)
            if found is None:
                return "A higher temperature makes the likeliest token less likely. Bisect."
            if not 0.005 < found < 200:
                return f"Temperatures lie between 0.01 and 100, not at {found}."
            low, high = (
                softmax(apply_temperature(logits, t)).max()
                for t in (1.01 * found, found / 1.01)
            )
            if not low <= share <= high:
                reached = softmax(apply_temperature(logits, found)).max()
                return (
                    f"At {found:.3f} the likeliest token has {reached:.4f}, not {share}; "
                    "the temperature may be off by 1 %, and it is by more."
                )
    return None


def bits(answer: Callable[[Array, int, GenerationOptions], float]) -> str | None:
    plain = GenerationOptions(temperature=1, top_k=0)
    narrow = GenerationOptions(temperature=0.7, top_k=3)
    for logits in _logits():
        order = np.argsort(-logits)
        for number, options in (
            (order[0], plain),
            (order[1], narrow),
            (order[5], narrow),
        ):
            found = answer(logits, int(number), options)
            if found is None:
                return "next_probabilities(logits, options) has the probabilities."
            probability = next_probabilities(logits, options)[number]
            right = -math.log2(probability) if probability else math.inf
            if found != right and not abs(found - right) < 1e-3:
                return f"A token with the probability {probability:.4f} costs {right:.3f} bits."
    return None
