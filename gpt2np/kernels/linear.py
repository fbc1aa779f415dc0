"""Linear layers over panels, and row-wise work in chunks.

Few rows: a product reads all of a matrix, so threads share the matrix (`gpt2np.kernels.matmul`).
Many rows: threads share the rows, and take a chunk of them through several layers at a time, so
that what is between the layers stays in a core's cache.

Shape letters: n rows; panels (I, P, k, m) are I groups of k inputs by P panels of m outputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.matmul import FEW_ROWS, product
from gpt2np.kernels.threads import in_parallel, split

Array = NDArray[Any]

_CHUNK = 64  # rows at most


def linear(x: Array, panels: Array, bias: Array | None = None) -> Array:
    """x (n, C) times a matrix in panels (I, P, k, m), plus bias (P·m) → (n, P·m)."""
    groups, outputs, k, m = panels.shape
    y = np.empty((groups, len(x), outputs, m), x.dtype)
    product(input_groups(x, groups, k)[:, None], panels, out=y.swapaxes(1, 2))
    total = added_up(y).reshape(len(x), outputs * m)
    if bias is not None:
        total += bias
    return total


def input_groups(x: Array, groups: int, k: int) -> Array:
    """x (n, C) in groups of k inputs, (I, n, k), zeros following the last; a view if none do."""
    if missing := max(0, groups * k - x.shape[1]):
        x = np.pad(x, ((0, 0), (0, missing)))
    return x[:, : groups * k].reshape(len(x), groups, k).swapaxes(0, 1)


def added_up(parts: Array) -> Array:
    """The sum over the first axis, in its order; the first part is overwritten with it."""
    total: Array = parts[0]
    for part in parts[1:]:
        total += part
    return total


def by_rows(function: Callable[..., Array], width: int, *arrays: Array) -> Array:
    """function(*arrays) → (n, width), a function of each row by itself; of many in chunks."""
    n = len(arrays[0])
    if n <= FEW_ROWS:
        return function(*arrays)
    chunks = split(n, max(python_threads(), -(-n // _CHUNK)))
    y = np.empty((n, width), arrays[0].dtype)

    def one(chunk: slice) -> None:
        y[chunk] = function(*[array[chunk] for array in arrays])

    in_parallel(one, chunks, python_threads())
    return y
