"""Linear layers over panels, and row-wise work in chunks.

Few rows: a product reads all of a matrix, so threads share the matrix (`gpt2np.model.product`).
Many rows: threads share the rows, and take a chunk of them through several layers at a time, so
that what is between the layers stays in a core's cache.

Shape letters: n rows; panels (I, P, k, m) are I groups of k inputs by P panels of m outputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.model.blas import python_threads
from gpt2np.model.product import FEW_ROWS, product
from gpt2np.threads import in_parallel, split

Array = NDArray[Any]

_CHUNK = 128  # rows at most


def linear(x: Array, panels: Array, bias: Array | None = None) -> Array:
    """x (n, I·k or more) times a matrix in panels (I, P, k, m), plus bias (P·m) → (n, P·m)."""
    groups, outputs, k, m = panels.shape
    y = np.empty((groups, len(x), outputs, m), x.dtype)
    inputs = x[:, : groups * k].reshape(len(x), groups, 1, k).transpose(1, 2, 0, 3)  # (I, 1, n, k)
    product(inputs, panels, out=y.swapaxes(1, 2))
    whole = y.reshape(groups, len(x), outputs * m)
    total: Array = whole[0] if groups == 1 else np.add.reduce(whole, 0)
    if bias is not None:
        total += bias
    return total


def by_rows(function: Callable[[Array], Array], x: Array, width: int) -> Array:
    """function(x) → (n, width), a function of each row of x (n, …) by itself; many in chunks."""
    if len(x) <= FEW_ROWS:
        return function(x)
    chunks = split(len(x), max(python_threads(), -(-len(x) // _CHUNK)))
    y = np.empty((len(x), width), x.dtype)

    def one(chunk: slice) -> None:
        y[chunk] = function(x[chunk])

    in_parallel(one, chunks, python_threads())
    return y
