"""Checkers of the exercises in 4_attention.ipynb."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from checks.examples import bundled, story_ids
from gpt2np import GPT2, trace
from gpt2np.interp import attention_summary, zero_head
from gpt2np.kernels.array import Array


def attention_score(answer: Callable[[Array, Array, int, int], float]) -> str | None:
    rng = np.random.default_rng(0)
    for size in (4, 64):
        q, k = rng.standard_normal((2, 3, size))
        for i, j in ((2, 0), (1, 1), (0, 2)):
            result, expected = answer(q, k, i, j), q[i] @ k[j] / math.sqrt(size)
            if result is None:
                return (
                    "Divide the dot product of q[i] and k[j] by the square root of D."
                )
            if j > i and not np.isneginf(result):
                return f"The mask hides key {j} from query {i}: return -math.inf."
            if j <= i and abs(result - expected) > 1e-6:
                return f"For D = {size}, expected the score {expected:.3f}, got {result:.3f}."
    return None


def mean_distance(answer: Callable[[Array], Array]) -> str | None:
    pattern = np.array(
        [
            np.eye(3),
            [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
            [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]],
        ]
    )
    result, expected = answer(pattern), [0, 1, (0 + 0.5 + 0.75) / 3]
    if result is None:
        return "Multiply each distance i - j by pattern[:, i, j]; sum over j, then average over i."
    if np.shape(result) != (3,):
        return f"For 3 heads, expected the shape (3,), got {np.shape(result)}."
    for head, mean, expected_mean in zip(pattern, result, expected, strict=True):
        if not np.isclose(mean, expected_mean):
            return f"For {head.tolist()}, expected {expected_mean:.2f}, got {mean:.2f}."
    return None


def previous_token_head(
    answer: Callable[[GPT2, Sequence[int]], tuple[int, int]],
) -> str | None:
    model = bundled().model
    for number in (1, 3):
        ids = story_ids(100, number)
        result = answer(model, ids)
        if result is None:
            return "np.diagonal(pattern, -1, 1, 2): each head's weights on the previous token."
        table = attention_summary(
            trace(model, ids, "blocks.*.attn.pattern")
        ).previous_token
        expected = divmod(int(table.argmax()), table.shape[1])
        if tuple(result) != expected:
            return f"For story {number}, expected (block, head) {expected}, got {tuple(result)}."
    return None


def ablate_head(
    answer: Callable[[GPT2, Sequence[int], int, int], Array],
) -> str | None:
    model, ids = bundled().model, story_ids(30)
    for layer, head in ((1, 1), (5, 0)):
        result = answer(model, ids, layer, head)
        if result is None:
            return "Pass zero_head(layer, head) or your own hook to model.forward([ids], hook=…)."
        expected = model.forward([ids], hook=zero_head(layer, head))
        if np.shape(result) != expected.shape:
            return f"Expected logits of the shape {expected.shape}, got {np.shape(result)}."
        if np.allclose(result, model.forward([ids]), atol=1e-3):
            return "The logits are those of the unchanged model."
        if not np.allclose(result, expected, atol=1e-3):
            return f"In blocks.{layer}.attn.z, set z[{head}] to 0 for all tokens, and nothing else."
    return None
