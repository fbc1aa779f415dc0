"""Solutions of the exercises in 3_ids_to_vectors.ipynb."""

from collections.abc import Sequence

import numpy as np

from gpt2np import GPT2, Tokenizer
from gpt2np.kernels.array import Array


def nearest_neighbors(table: Array, number: int, count: int) -> list[int]:
    directions = table / np.linalg.norm(table, axis=1, keepdims=True)
    order = np.argsort(-(directions @ directions[number]))
    return [int(row) for row in order if row != number][:count]


def embed(model: GPT2, ids: Sequence[int], start: int) -> Array:
    positions = range(start, start + len(ids))
    return (
        model.weights["wte.weight"][list(ids)]
        + model.weights["wpe.weight"][list(positions)]
    )


def odd_one_out(model: GPT2, tokenizer: Tokenizer, words: Sequence[str]) -> str:
    rows = model.weights["wte.weight"][[tokenizer.encode(word)[0] for word in words]]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return words[int((rows @ rows.T).sum(1).argmin())]
