"""Matrix products of any number of rows, a row's result being the same, to the bit, in all of them.

NumPy hands a product to BLAS, which has one routine for a single row, another for many, and packs
its operands into buffers first: two rows take three times as long as one, and their last bits
differ. OpenBLAS has a third routine for small products, which reads the operands where they are and
sums each number of the result in the order of k, whatever the other rows and columns (checked in
tests/model/test_product.py). So every product here is a stack of small ones.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.kernels.blas import python_threads, small_kernels
from gpt2np.kernels.threads import in_parallel, split

Array = NDArray[Any]

LANES = 16  # columns are multiples of it: the last few of a row would be summed in another order
_LARGEST = 1_000_000  # n·k·m of a small product
_MOST_ROWS = 16  # more would not be faster
FEW_ROWS = 64  # of more, the forward pass shares the rows
_WORTH_SHARING = 15_000_000  # multiplications; of less, the waking of a thread takes too much


def least_rows() -> int:
    """How many rows a product must have for their results to be those of any other number."""
    return 2 if small_kernels() else 1


def product(x: Array, w: Array, out: Array | None = None) -> Array:
    """x (…, n, k) times w (…, k, m) → (…, n, m), for m a multiple of LANES.

    A row's result does not depend on n or on the other rows where `small_kernels()` and k·m is at
    most half a million; elsewhere it is what np.matmul gives.
    """
    n, k, m = *x.shape[-2:], w.shape[-1]
    if n == 1 and small_kernels():  # a single row would be left to another routine
        y = product(np.repeat(x, 2, axis=-2), w)[..., :1, :]
        if out is not None:
            out[...] = y
        return y
    most = min(_MOST_ROWS, max(2, _LARGEST // (k * m))) if small_kernels() else n
    is_shared = w.ndim > 2 and n <= FEW_ROWS and n * w.size > _WORTH_SHARING
    if n <= most and not is_shared:
        return np.matmul(x, w, out=out)
    if out is None:
        front = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
        out = np.empty((*front, n, m), x.dtype)
    (_share if is_shared else _multiply)(x, w, out, most)
    return out


def _share(x: Array, w: Array, out: Array, most: int) -> None:
    """Few rows times many matrices: other threads take some of the matrices.

    A thread is asked for nothing but the product, because threads that run Python wait for each
    other at every step.
    """

    each = x.ndim > 2 and x.shape[-3] > 1  # matrix has rows of its own

    def some(share: slice) -> None:
        rows = x[..., share, :, :] if each else x
        _multiply(rows, w[..., share, :, :], out[..., share, :, :], most)

    in_parallel(some, split(w.shape[-3], python_threads()), python_threads())


def _multiply(x: Array, w: Array, out: Array, most: int) -> None:
    """The product, `most` rows at a time."""
    n = x.shape[-2]
    if n <= most:
        np.matmul(x, w, out=out)
        return
    rows = -(-n // -(-n // most))  # of each small product, as equal as can be
    whole = n // rows * rows
    many, into = _stacked(x[..., :whole, :], rows), _stacked(out[..., :whole, :], rows)
    # In the order of the axes, so that a matrix serves all rows before the next one is read.
    np.matmul(many, w[..., None, :, :], out=into, order="C")
    if whole < n:  # some rows twice, so that there are enough
        np.matmul(x[..., n - rows :, :], w, out=out[..., n - rows :, :])


def _stacked(x: Array, rows: int) -> Array:
    """(…, n, m) → (…, n / rows, rows, m), a view."""
    return x.reshape(*x.shape[:-2], -1, rows, x.shape[-1])
