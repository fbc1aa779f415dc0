"""Matrix products, in which each row has the same bits for any number of rows where BLAS can.

BLAS multiplies a single row with GEMV, several rows with GEMM, which first packs its operands. The
last bits of the results differ, and two rows take three times as long as one row.

OpenBLAS on AVX-512 also has small-matrix kernels, which read the operands in place. They sum over k
in ascending order, independently of other rows and columns (tests/unit/kernels/test_matmul.py).
There, this module splits every product into small products. With any other kernels, products are
as large as possible, and the bits of a row can depend on the number of rows.

    kernels       weights           rows   product
    small-matrix  panels            1      of the row twice: the kernels need two rows
    small-matrix  panels            2 …    of each panel and chunks of rows, ≤ 10⁶ multiplications
    any other     panels            1 …    of each panel: GEMV for a row, GEMM for several
    any other     stored by output  1 … 8  GEMV for each row, of all inputs at once (`split_k`)
    any other     stored by output  9 …    GEMM of each group of inputs, ≤ 3072 columns at a time
    all           panels of int8    1 …    as above, of a few panels at a time in the rows' dtype

Panels are converted from int8 because BLAS multiplies no int8; the converted panels stay in the
cache until their product. Threads share the panels or columns of a product for up to SMALL_BATCH
rows and at least MIN_SHARED_WORK multiplications. Of more rows, `by_rows` gives each thread some.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import python_threads, small_kernels
from gpt2np.kernels.threads import even_slices, is_inline, parallel_for

LANES = 16
"""Columns of matrices are padded to a multiple of LANES: BLAS sums leftovers in another order."""

SMALL_BATCH = 64
"""The largest number of rows for which threads share the matrix instead of the rows."""

_MAX_SMALL_PRODUCT = 1_000_000  # the largest n·k·m of one call of the small-matrix kernel
MAX_SPLIT_ROWS = 7
"""The most rows for which some columns of a product have the same bits as in the whole product.

This holds for OpenBLAS on x86; with small-matrix kernels, for any number of rows."""

MAX_GEMV_ROWS = 8
"""The most rows for which one GEMV per row is faster than GEMM, without small-matrix kernels.

This holds for matrices stored by output, as large packed matrices are. With the AVX2 kernels on an
Intel Xeon, a step of 4 or 8 sequences takes 33 and 49 ms; with GEMM, 49 and 57.
"""

_GEMV_WEIGHTS = 2**16
"""The most weights of one GEMV. All rows read these weights before the next ones, from L2."""

_MAX_COLUMNS = 3072
"""The most columns of one GEMM. In parts, the unembedding of few rows is faster."""

MIN_SHARED_WORK = 15_000_000
"""The fewest multiplications that threads share. Fewer take less time than waking a thread."""

_MAX_CONVERTED = 600_000
"""The most weights that are converted from int8 at a time, so that they stay in the cache."""

_CONVERSION_WORK = 4
"""Converting a weight from int8 takes as long as this many multiplications."""

_lanes: defaultdict[np.dtype[Any], Array] = defaultdict(lambda: np.empty((0, LANES)))


def splits_exactly(n_rows: int) -> bool:
    """Tell whether a product that ranks compute by columns has the bits of the whole product."""
    return small_kernels() or n_rows <= MAX_SPLIT_ROWS


def split_k(n: int, groups: int) -> int:
    """Return how many groups of inputs n rows multiply one by one, of a matrix stored by output.

    GEMV keeps several partial sums per output; GEMM keeps one, so long sums round more.
    """
    return 1 if n <= MAX_GEMV_ROWS else groups


def matmul(x: Array, w: Array, out: Array | None = None) -> Array:
    """Multiply x (…, n, k) by w (…, k, m). Returns (…, n, m).

    m must be a multiple of LANES, the unit of padding. If `small_kernels()` and k·m ≤ 500,000, each
    row of the result has the same bits for any n and any other rows. Otherwise, as with np.matmul,
    the bits can depend on n and on the other rows.

    w can be panels (I, …, P, k, m) of int8; the products are computed in x's dtype.
    """
    n, k, m = x.shape[-2], x.shape[-1], w.shape[-1]
    if n == 1 and small_kernels():  # BLAS would use GEMV; the small-matrix kernels need two rows
        is_plain = w.dtype != np.int8 and 2 * w.size <= MIN_SHARED_WORK
        y = (np.matmul if is_plain else matmul)(x.repeat(2, -2), w)[..., :1, :]
        if out is None:
            return y
        out[...] = y
        return out
    if w.dtype == np.int8:
        return _matmul_int8(x, w, out)
    if not small_kernels():
        if n == 1 and w.size <= MIN_SHARED_WORK:  # most products of a decode step
            return np.matmul(x, w, out=out)
        return _matmul_of_any_blas(x, w, out)
    is_small = n * k * m <= _MAX_SMALL_PRODUCT
    if is_small and n > 1 and n * w.size <= MIN_SHARED_WORK:  # most products of a decode step
        return np.matmul(x, w, out=out)
    is_shared = _is_shared(n, w)
    if (is_small or n == 2) and not is_shared:
        return np.matmul(x, w, out=out)
    max_rows = max(2, _MAX_SMALL_PRODUCT // (k * m))
    if out is None:
        out = _empty_product(x, w)
    (_matmul_on_threads if is_shared else _matmul_in_row_chunks)(x, w, out, max_rows)
    return out


def _matmul_of_any_blas(x: Array, w: Array, out: Array | None) -> Array:
    """Multiply x (…, n, k) by w (…, k, m) without small-matrix kernels. Threads share columns."""
    n, m = x.shape[-2], w.shape[-1]
    is_stored_by_output = w.strides[-2] == w.itemsize
    by_gemv = is_stored_by_output and 1 < n <= MAX_GEMV_ROWS
    threads = python_threads() if _is_shared(n, w) else 1
    n_parts = threads if by_gemv else max(threads, -(-m // _MAX_COLUMNS))
    parts = even_slices(m // LANES, n_parts)
    if len(parts) == 1 and not by_gemv:
        return np.matmul(x, w, out=out)
    y = _empty_product(x, w) if out is None else out

    def multiply(part: slice) -> None:
        columns = slice(part.start * LANES, part.stop * LANES)
        multiply_part = _multiply_by_gemv if by_gemv else np.matmul
        multiply_part(x, w[..., columns], out=y[..., columns])

    parallel_for(multiply, parts, threads)
    return y


def _multiply_by_gemv(x: Array, w: Array, out: Array) -> None:
    """Write x (…, n, k) times w (…, k, m) to `out`: one GEMV per row and part of the columns."""
    k, m = w.shape[-2:]
    most = 1 << max(0, (_GEMV_WEIGHTS // k).bit_length() - 1)  # a power of two, as LANES
    width = m if m <= most else math.gcd(m, most)
    w, out = (a.reshape(*a.shape[:-1], -1, width).swapaxes(-3, -2) for a in (w, out))
    # Rows are the innermost axis of the stack, so a part of the matrix is read once for all rows.
    np.matmul(x[..., None, :, None, :], w[..., None, :, :], out=out[..., None, :], order="C")


def _is_shared(n: int, w: Array) -> bool:
    """Tell whether threads share the product of n rows and w (…, k, m)."""
    is_large = w.ndim > 2 and n <= SMALL_BATCH and n * w.size > MIN_SHARED_WORK
    return is_large and not is_inline()


def _empty_product(x: Array, w: Array) -> Array:
    stack = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    return np.empty((*stack, x.shape[-2], w.shape[-1]), x.dtype)


def _matmul_int8(x: Array, w: Array, out: Array | None) -> Array:
    """Multiply x (…, n, k) by w (I, …, P, k, m) of int8. Threads share the panels."""
    *stack, k, m = w.shape
    n = x.shape[-2]
    rows = np.broadcast_to(x, (*stack, n, k))
    y = np.empty((*stack, n, m), x.dtype) if out is None else out
    is_shared = n <= SMALL_BATCH and (n + _CONVERSION_WORK) * w.size > MIN_SHARED_WORK
    threads = python_threads() if is_shared else 1
    # All panels of a group are contiguous; some panels of all groups take 1.08 times as long.
    groups = even_slices(stack[0], -(-w.size // _MAX_CONVERTED))
    n_parts = max(threads, -(-w[groups[-1]].size // _MAX_CONVERTED))

    def multiply(panels: slice) -> None:
        for group in groups:
            part = (group, ..., panels, slice(None), slice(None))
            matmul(rows[part], w[part].astype(x.dtype), out=y[part])

    parallel_for(multiply, even_slices(stack[-1], n_parts), threads)
    return y


def row_sums(x: Array) -> Array:
    """Sum each row of x (…, n, k). Returns (…, n, 1).

    Unlike with np.sum, zeros at the end of a row change no bit of its sum. The product with stacked
    identity matrices has LANES partial sums per row, which round less than one running sum.
    """
    lanes = _lanes[x.dtype]
    if lanes.shape[0] < x.shape[-1]:
        lanes = np.tile(np.eye(LANES, dtype=x.dtype), (2 * x.shape[-1] // LANES + 1, 1))
        _lanes[x.dtype] = lanes
    sums: Array = np.add.reduce(matmul(x, lanes[: x.shape[-1]]), -1, keepdims=True)
    return sums


def _matmul_on_threads(x: Array, w: Array, out: Array, max_rows: int) -> None:
    """Multiply x by a stack of matrices w on several threads, at most `max_rows` rows at once."""
    x_is_stacked = x.ndim > 2 and x.shape[-3] > 1

    def multiply(share: slice) -> None:
        rows = x[..., share, :, :] if x_is_stacked else x
        _matmul_in_row_chunks(rows, w[..., share, :, :], out[..., share, :, :], max_rows)

    parallel_for(multiply, even_slices(w.shape[-3], python_threads()), python_threads())


def _matmul_in_row_chunks(x: Array, w: Array, out: Array, max_rows: int) -> None:
    n = x.shape[-2]
    if n <= max_rows:
        np.matmul(x, w, out=out)
        return
    rows = -(-n // -(-n // max_rows))  # chunks as equal as possible
    whole = n // rows * rows
    chunks, results = (
        array[..., :whole, :].reshape(*array.shape[:-2], -1, rows, array.shape[-1])
        for array in (x, out)
    )
    # Row chunks are the innermost axis of the stack, so a matrix is read once for all chunks.
    np.matmul(chunks, w[..., None, :, :], out=results, order="C")
    if whole < n:  # the last chunk overlaps the previous chunk, so that both have `rows` rows
        np.matmul(x[..., n - rows :, :], w, out=out[..., n - rows :, :])
