"""Linear layers with packed matrices, and functions that treat each row (token) separately.

With few rows, reading the matrix takes most of the time, so threads share the matrix (`matmul`).
With many rows, threads share the rows (`map_rows`). Each thread then computes several layers for
one chunk of rows, so that the activations between the layers stay in one core's cache.

Shape letters: n rows; a packed matrix (I, P, k, m) has I groups of k inputs by P groups of m
outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.matmul import SMALL_BATCH, matmul
from gpt2np.kernels.threads import even_slices, parallel_for

_MAX_CHUNK = 64  # rows


@dataclass(frozen=True)
class PackedLinear:
    """The weights of one linear layer.

    Attributes:
        name: the layer's name. Tensor-parallel ranks share one output buffer per name.
        panels: the packed matrix, (I, P, k, m).
        bias: (P·m,), or None for a layer without a bias.
        out_features: the number of outputs without padding.
    """

    name: str
    panels: Array
    bias: Array | None
    out_features: int

    @property
    def padded_features(self) -> int:
        """The number of outputs with padding, P·m."""
        return int(self.panels.shape[1] * self.panels.shape[3])


@dataclass(frozen=True)
class PackedHeads:
    """The weights of the linear layer that computes queries, keys and values, split by head.

    Attributes:
        panels: (I, 3, H, k, D): I groups of k inputs; queries, keys, values; H heads; D channels.
        bias: (3, H, 1, D).
    """

    panels: Array
    bias: Array


def linear(x: Array, panels: Array, bias: Array | None = None) -> Array:
    """Multiply x by a packed matrix, and add the bias, if given.

    Takes x (n, C), panels (I, P, k, m) and bias (P·m,). Returns (n, P·m).
    """
    (groups, n_panels, k, m), n = panels.shape, x.shape[0]
    partials = np.empty((groups, n, n_panels, m), x.dtype)
    matmul(split_k(x, groups, k)[:, None], panels, out=partials.swapaxes(1, 2))
    total = partials[0] if groups == 1 else sum_partials(partials)
    total = total.reshape(n, n_panels * m)
    if bias is not None:
        total += bias
    return total


def project_heads(x: Array, w: PackedHeads, heads: slice) -> Array:
    """Project x (N, C) to the queries, keys and values of h heads. Returns (3, h, N, D)."""
    groups, _, _, k, _ = w.panels.shape
    qkv = sum_partials(matmul(split_k(x, groups, k)[:, None, None], w.panels[:, :, heads]))
    qkv += w.bias[:, heads]
    return qkv


def split_k(x: Array, groups: int, k: int) -> Array:
    """Split the channels of x (n, C) into groups of k channels. Returns (I, n, k).

    Zeros pad the last group.
    """
    n, channels = x.shape
    if groups * k > channels:
        x = np.pad(x, ((0, 0), (0, groups * k - channels)))
    if groups == 1:
        return x[None]
    return x.reshape(n, groups, k).swapaxes(0, 1)


def sum_partials(partials: Array) -> Array:
    """Sum partial products over the first axis, in ascending order of the index.

    The sum overwrites `partials[0]`. np.sum would add in another order.
    """
    total: Array = partials[0]
    for i in range(1, partials.shape[0]):
        total += partials[i]
    return total


def map_rows(function: Callable[..., Array], width: int, *arrays: Array) -> Array:
    """Apply a function to chunks of rows on several threads, and join the results.

    `function` must treat each row separately. Each call gets the same rows of every array. If there
    are at most SMALL_BATCH rows, a single call gets all rows. Returns (n, width).
    """
    n = arrays[0].shape[0]
    if n <= SMALL_BATCH:
        return function(*arrays)
    threads = python_threads()
    y = np.empty((n, width), arrays[0].dtype)

    def run_chunk(rows: slice) -> None:
        y[rows] = function(*[array[rows] for array in arrays])

    parallel_for(run_chunk, even_slices(n, max(threads, -(-n // _MAX_CHUNK))), threads)
    return y
