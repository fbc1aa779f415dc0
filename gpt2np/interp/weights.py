"""Weights to look at: parts of matrices, and the tokens nearest to a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpt2np.errors import check_argument
from gpt2np.kernels.array import Array, IntArray


def submatrix(
    weights: Mapping[str, Array],
    name: str,
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
    cells: int = 96,
) -> Array:
    """Return part of a weight as a matrix of at most `cells` rows and columns.

    `rows` and `columns` are half-open ranges (default: all); a vector is a matrix of one row. If a
    range is longer than `cells`, each number is the strongest of a bin: the one farthest from 0.

    Raises InvalidArgumentError if the weight or a range does not exist.
    """
    check_argument(name in weights, "name", name, "the name of a weight, such as wte.weight")
    check_argument(cells >= 1, "cells", cells, "at least 1")
    matrix = np.atleast_2d(weights[name])
    ranges = []
    for axis, (what, part) in enumerate({"rows": rows, "columns": columns}.items()):
        size = matrix.shape[axis]
        start, stop = part or (0, size)
        check_argument(0 <= start < stop <= size, what, part, f"a range within 0:{size}")
        ranges.append(slice(start, stop))
    return strongest(matrix[tuple(ranges)], cells)


def strongest(matrix: Array, cells: int) -> Array:
    """Return the number farthest from 0 of each bin of a matrix: at most `cells` bins a side."""
    for axis in (0, 1):
        size = matrix.shape[axis]
        if size <= cells:
            continue
        starts = np.arange(cells) * size // cells
        low = np.minimum.reduceat(matrix, starts, axis)
        high = np.maximum.reduceat(matrix, starts, axis)
        matrix = np.where(-low > high, low, high)
    return matrix


def nearest_tokens(embedding: Array, ids: Sequence[int], count: int) -> tuple[IntArray, Array]:
    """Return the ids of the other tokens most similar to each of `ids`, and the cosines.

    The most similar token comes first. `embedding` is (V, C). Returns two arrays (N, count).
    """
    lengths = np.sqrt(np.einsum("vc,vc->v", embedding, embedding))  # (V,)
    lengths = np.maximum(lengths, np.finfo(embedding.dtype).tiny)
    cosines = (embedding[ids] @ embedding.T) / lengths[ids][:, None] / lengths  # (N, V)
    cosines[np.arange(len(ids)), ids] = -2
    count = min(count, len(embedding) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(cosines, nearest, 1)
