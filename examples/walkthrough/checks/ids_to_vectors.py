"""Checkers of the exercises in 3_ids_to_vectors.ipynb."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.examples import bundled
from gpt2np import GPT2, Tokenizer

Array = NDArray[Any]


def nearest(answer: Callable[[Array, int, int], Sequence[int]]) -> str | None:
    table = np.array([[1, 0], [0, 1], [10, 1], [0.6, 0.5], [-1, 0]])
    for number, right in {0: [2, 3, 1], 1: [3, 2, 0]}.items():
        found = answer(table, number, 3)
        if found is None:
            return "Divide each row by its length; the product with row `number` are the cosines."
        if number in list(found):
            return "A row is nearest to itself; leave it out."
        if list(found) != right:
            return f"Of {table.tolist()}, nearest to row {number} are {right}."
    return None


def inputs_from(answer: Callable[[GPT2, Sequence[int], int], Array]) -> str | None:
    model = bundled().model
    for ids, start in (([5, 6, 7], 0), ([5, 6, 7], 200), ([9], 511)):
        found = answer(model, ids, start)
        if found is None:
            return "Add rows of wte, chosen by ids, and rows of wpe, chosen by places."
        right = model.weights["wte.weight"][ids]
        right = right + model.weights["wpe.weight"][start : start + len(ids)]
        if np.shape(found) != right.shape:
            return f"For {len(ids)} ids the shape must be {right.shape}, not {np.shape(found)}."
        if not np.allclose(found, right, atol=1e-5):
            return f"For start {start} the token i, from 0, stands at the place {start} + i."
    return None


def odd_one_out(answer: Callable[[GPT2, Tokenizer, Sequence[str]], str]) -> str | None:
    model, tokenizer = bundled().model, bundled().tokenizer
    for words, right in (
        ([" mother", " father", " river", " sister"], " river"),
        ([" river", " mother", " father", " sister"], " river"),
        ([" red", " blue", " green", " said"], " said"),
        ([" fox", " three", " wolf", " lion", " dog"], " three"),
        ([" husband", " fox", " wolf", " horse"], " husband"),
    ):
        found = answer(model, tokenizer, words)
        if found is None:
            return "Compare the directions of the words' rows of wte; return one of the words."
        if found != right:
            return (
                f"Of {words} it is {right!r}, not {found!r}, "
                "by the mean cosine with the others."
            )
    return None
