"""Checkers of the exercises in 4_attention.ipynb."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.examples import bundled, story_ids
from gpt2np import GPT2, trace
from gpt2np.interp import zero_head
from gpt2np.interp.summary import attention_summary

Array = NDArray[Any]


def score_of(answer: Callable[[Array, Array, int, int], float]) -> str | None:
    rng = np.random.default_rng(0)
    for size in (4, 64):
        q, k = rng.standard_normal((2, 3, size))
        for i, j in ((2, 0), (1, 1), (0, 2)):
            found, right = answer(q, k, i, j), q[i] @ k[j] / math.sqrt(size)
            if found is None:
                return "Multiply row i of q with row j of k; divide by the root of their length."
            if j > i and not np.isneginf(found):
                return (
                    f"Token {i} must not see token {j}, which comes later: -math.inf."
                )
            if j <= i and abs(found - right) > 1e-6:
                return f"With {size} channels a score was {found:.3f}, expected {right:.3f}."
    return None


def looks_back(answer: Callable[[Array], Array]) -> str | None:
    pattern = np.array(
        [
            np.eye(3),
            [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
            [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]],
        ]
    )
    found, right = answer(pattern), [0, 1, (0 + 0.5 + 0.75) / 3]
    if found is None:
        return "Weight each distance i - j with pattern[:, i, j]; add up over j, average over i."
    if np.shape(found) != (3,):
        return f"For 3 heads return 3 numbers; the shape was {np.shape(found)}."
    for one, back, distance in zip(pattern, found, right, strict=True):
        if not np.isclose(back, distance):
            return (
                f"The pattern {one.tolist()} looks {distance:.2f} back, not {back:.2f}."
            )
    return None


def previous_token_head(
    answer: Callable[[GPT2, Sequence[int]], tuple[int, int]],
) -> str | None:
    model = bundled().model
    for number in (1, 3):
        ids = story_ids(100, number)
        found = answer(model, ids)
        if found is None:
            return "np.diagonal(pattern, -1, 1, 2) are a head's weights on the token before."
        table = attention_summary(
            trace(model, ids, "blocks.*.attn.pattern")
        ).previous_token
        right = divmod(int(table.argmax()), table.shape[1])
        if tuple(found) != right:
            return f"For one text it is block {right[0]}, head {right[1]}, not {tuple(found)}."
    return None


def without_head(
    answer: Callable[[GPT2, Sequence[int], int, int], Array],
) -> str | None:
    model, ids = bundled().model, story_ids(30)
    for layer, head in ((1, 1), (5, 0)):
        found = answer(model, ids, layer, head)
        if found is None:
            return "Use model.forward([ids], hook=…) with zero_head or your own hook."
        right = model.forward([ids], hook=zero_head(layer, head))
        if np.shape(found) != right.shape:
            return f"Logits of all tokens have the shape {right.shape}, not {np.shape(found)}."
        if np.allclose(found, model.forward([ids]), atol=1e-3):
            return "These are the logits of the whole model."
        if not np.allclose(found, right, atol=1e-3):
            return f"Only z[{head}] of blocks.{layer}.attn.z must be 0, for all tokens."
    return None
