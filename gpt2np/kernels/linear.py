"""Linear layers with packed matrices, and functions that treat each row (token) separately.

With few rows, reading the matrix takes most of the time, so threads share the matrix (`matmul`).
With many rows, threads share the rows (`by_rows`). Each thread then computes several layers for
one chunk of rows, so that the activations between the layers stay in one core's cache.

The table in `gpt2np.kernels.matmul` says how each product is computed.

Shape letters: n rows; I groups of k inputs by P panels of m outputs in a packed matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import python_threads, small_kernels
from gpt2np.kernels.matmul import SMALL_BATCH, matmul
from gpt2np.kernels.packed_matrix import PackedMatrix
from gpt2np.kernels.threads import even_slices, parallel_for

_MAX_CHUNK = 64  # rows
_MAX_GEMM_CHUNK = 256  # rows; GEMM copies its matrix once per chunk
_MAX_REDUCED = 4096  # numbers; one reduction of more is slower than a loop of additions


def linear(x: Array, w: PackedMatrix, then: Callable[[Array], Array] | None = None) -> Array:
    """Compute x @ matrix + bias for x (n, in), then the elementwise function `then`, if given.

    Returns (n, out).
    """
    n, (_, n_panels, _, m) = x.shape[0], w.data.shape
    partials = matmul(*_operands(x, w))  # (I, P, n, m), or (groups, 1, n, P·m)
    if w.scale is not None:
        partials *= w.scale[:, :, None]
    y = sum_partials(partials)  # (P, n, m)
    y = (y if n == 1 else y.swapaxes(0, 1)).reshape(n, n_panels * m)  # one row is in order already
    if w.bias is not None:
        y += w.bias
    y = y[:, : w.shape[1]]
    return then(y) if then else y


def unembed(x: Array, w: PackedMatrix) -> Array:
    """Return the logits (n, V) for final hidden states x (n, C), in chunks of rows."""
    parts = [by_rows(partial(linear, w=part), x, width=part.shape[1]) for part in w.parts()]
    return np.concatenate(parts, axis=1) if parts[1:] else parts[0]


def project_heads(x: Array, w: PackedMatrix, heads: slice) -> Array:
    """Project x (N, C) to q, k and v of a slice of h heads. Returns (3, h, N, D).

    Each of the 3·H panels of w computes the queries, keys or values of one head.
    """
    n, (groups, n_panels, k, d) = x.shape[0], w.data.shape
    n_head, (rows, factors) = n_panels // 3, _operands(x, w)
    if factors is w.data:
        panels = factors.reshape(groups, 3, n_head, k, d)[:, :, heads]
        qkv = matmul(rows[:, None], panels)  # (I, 3, h, N, D)
    else:
        columns = factors.reshape(len(factors), -1, 3, n_head * d).swapaxes(1, 2)
        qkv = matmul(rows, columns[..., heads.start * d : heads.stop * d])  # (groups, 3, N, h·D)
        qkv = qkv.reshape(len(factors), 3, n, -1, d).swapaxes(2, 3)
    if w.scale is not None:
        qkv *= w.scale.reshape(groups, 3, n_head, 1, d)[:, :, heads]
    qkv = sum_partials(qkv)
    if w.bias is not None:
        qkv += w.bias.reshape(3, n_head, 1, d)[:, heads]
    return qkv


def _operands(x: Array, w: PackedMatrix) -> tuple[Array, Array]:
    """Return x (n, C) by group, (groups, 1, n, width / groups), and the matrices for its n rows."""
    (n, n_in), width = x.shape, w.data.shape[0] * w.data.shape[2]
    factors = w.data if small_kernels() else w.factors(n)
    if n_in < width:
        x = np.pad(x, ((0, 0), (0, width - n_in)))
    groups = factors.shape[0]
    if n == 1:
        return x.reshape(groups, 1, 1, -1), factors
    return x.reshape(-1, groups, 1, width // groups).transpose(1, 2, 0, 3), factors


def sum_partials(partials: Array) -> Array:
    """Sum partials[0], partials[1], … in this order. Overwrites partials (I, …, n, m)."""
    total: Array = partials[0]
    if partials.shape[0] > 1 and (partials.shape[-2] == 1 or total.size <= _MAX_REDUCED):
        # Along an axis that is not contiguous, np.add.reduce, too, adds in this order.
        total = np.add.reduce(partials)
    else:
        for term in partials[1:]:
            total += term
    return total


def by_rows(function: Callable[..., Array], *arrays: Array, width: int | None = None) -> Array:
    """Apply a function that treats every row (token) of the arrays separately.

    If there are more than SMALL_BATCH rows, several threads compute chunks of the rows. Each call
    gets the same rows of every array. Returns (n, width), by default as wide as the first array.
    """
    n, first_width = arrays[0].shape
    if n <= SMALL_BATCH:
        return function(*arrays)
    threads = python_threads()
    y = np.empty((n, width or first_width), arrays[0].dtype)

    def run_chunk(rows: slice) -> None:
        y[rows] = function(*[array[rows] for array in arrays])

    max_chunk = _MAX_CHUNK if small_kernels() else _MAX_GEMM_CHUNK
    parallel_for(run_chunk, even_slices(n, max(threads, -(-n // max_chunk))), threads)
    return y
