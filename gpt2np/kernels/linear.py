"""Linear layers with packed matrices, and functions that treat each row (token) separately.

With few rows, reading the matrix takes most of the time, so threads share the matrix (`matmul`).
With many rows, threads share the rows (`map_rows`). Each thread then computes several layers for
one chunk of rows, so that the activations between the layers stay in one core's cache.

Shape letters: n rows; a packed matrix (I, P, k, m) has I groups of k inputs by P panels of m
outputs.
"""

from __future__ import annotations

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
        name: the layer's name; ranks share one buffer for each name.
        panels: the matrix, (I, P, k, m).
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

    def panel_range(self, panels: slice) -> PackedLinear:
        """Return the layer that computes only the outputs, padding included, of some panels."""
        m = self.panels.shape[3]
        columns = slice(panels.start * m, panels.stop * m)
        bias = None if self.bias is None else self.bias[columns]
        n_columns = columns.stop - columns.start
        return PackedLinear(self.name, self.panels[:, panels], bias, n_columns)


@dataclass(frozen=True)
class PackedHeads:
    """The weights of the linear layer that computes queries, keys and values, split by head.

    Attributes:
        panels: (I, 3, H, k, D): I groups of k inputs; queries, keys, values; H heads; D channels.
        bias: (3, H, 1, D).
    """

    panels: Array
    bias: Array


def linear(x: Array, w: PackedLinear, then: Callable[[Array], Array] | None = None) -> Array:
    """Compute x @ matrix + bias for x (n, C), then the elementwise function `then`, if given.

    Returns (n, out_features).
    """
    (groups, n_panels, k, m), n = w.panels.shape, x.shape[0]
    partials = np.empty((groups, n, n_panels, m), x.dtype)
    if groups > 1 or k > x.shape[1]:
        x = _split_k(x, groups, k)[:, None]
    matmul(x, w.panels, out=partials.swapaxes(1, 2))
    y = partials[0] if groups == 1 else sum_partials(partials)
    y = y.reshape(n, n_panels * m)
    if w.bias is not None:
        y += w.bias
    y = y[:, : w.out_features]
    return then(y) if then else y


def project_heads(x: Array, w: PackedHeads, heads: slice) -> Array:
    """Project x (N, C) to the queries, keys and values of h heads. Returns (3, h, N, D)."""
    groups, _, _, k, _ = w.panels.shape
    if groups > 1 or k > x.shape[1]:
        x = _split_k(x, groups, k)[:, None, None]
    qkv = matmul(x, w.panels[:, :, heads])
    qkv = sum_partials(qkv) if groups > 1 else qkv[0]
    qkv += w.bias[:, heads]
    return qkv


def _split_k(x: Array, groups: int, k: int) -> Array:
    """Split the channels of x (n, C) into groups of k channels. Returns (I, n, k).

    Zeros pad the last group.
    """
    if groups * k > x.shape[1]:
        x = np.pad(x, ((0, 0), (0, groups * k - x.shape[1])))
    return x.reshape(-1, groups, k).swapaxes(0, 1)


def sum_partials(partials: Array) -> Array:
    """Sum partial results over the first axis, in ascending order.

    The sum overwrites `partials[0]`. np.sum would add in another order.
    """
    total: Array = partials[0]
    for i in range(1, partials.shape[0]):
        total += partials[i]
    return total


def map_rows(function: Callable[..., Array], width: int, *arrays: Array) -> Array:
    """Apply a function that treats each row separately; threads share the rows if there are many.

    Each call gets a chunk of the same rows from all arrays. Returns (n, width).
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
