"""Checkers of the exercises in 3_ids_to_vectors.ipynb."""

from collections.abc import Callable, Sequence

import numpy as np

from checks.examples import bundled
from gpt2np import GPT2, Tokenizer
from gpt2np.kernels.array import Array


def nearest_neighbors(
    answer: Callable[[Array, int, int], Sequence[int]],
) -> str | None:
    table = np.array([[1, 0], [0, 1], [10, 1], [0.6, 0.5], [-1, 0]])
    for number, expected in {0: [2, 3, 1], 1: [3, 2, 0]}.items():
        result = answer(table, number, 3)
        if result is None:
            return "Divide each row by its length; the products with row `number` are the cosines."
        if number in list(result):
            return "Leave out row `number` itself."
        if list(result) != expected:
            return f"In {table.tolist()}, the nearest to row {number} are {expected}."
    return None


def embed(answer: Callable[[GPT2, Sequence[int], int], Array]) -> str | None:
    model = bundled().model
    for ids, start in (([5, 6, 7], 0), ([5, 6, 7], 200), ([9], 511)):
        result = answer(model, ids, start)
        if result is None:
            return (
                "Add the rows of wte for the ids and the rows of wpe for the positions."
            )
        expected = model.weights["wte.weight"][ids]
        expected = expected + model.weights["wpe.weight"][start : start + len(ids)]
        if np.shape(result) != expected.shape:
            return f"For {len(ids)} ids, expected shape {expected.shape}, got {np.shape(result)}."
        if not np.allclose(result, expected, atol=1e-5):
            return (
                f"For start = {start}, token i (from 0) has the position {start} + i."
            )
    return None


def odd_one_out(answer: Callable[[GPT2, Tokenizer, Sequence[str]], str]) -> str | None:
    model, tokenizer = bundled().model, bundled().tokenizer
    for words, expected in (
        ([" mother", " father", " river", " sister"], " river"),
        ([" river", " mother", " father", " sister"], " river"),
        ([" red", " blue", " green", " said"], " said"),
        ([" fox", " three", " wolf", " lion", " dog"], " three"),
        ([" husband", " fox", " wolf", " horse"], " husband"),
    ):
        result = answer(model, tokenizer, words)
        if result is None:
            return "Compare the directions of the words' rows of wte, and return one of the words."
        if result != expected:
            return (
                f"For {words}, expected {expected!r}, got {result!r}: "
                "the lowest mean cosine with the other words."
            )
    return None
