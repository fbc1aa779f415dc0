"""Linear layers with packed matrices, and functions that treat each row (token) separately.

With few rows, reading the matrix takes most of the time, so threads share the matrix (`matmul`).
With many rows, threads share the rows (`map_rows`). Each thread then computes several layers for
one chunk of rows, so that the activations between the layers stay in one core's cache.

Shape letters: n rows; I groups of k inputs by P panels of m outputs in a packed matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
        panels: the packed matrix, (I, P, k, m): I groups of k inputs by P panels of m outputs.
        bias: (P·m,), or None for a layer without a bias.
        out_features: the number of outputs without padding.
        scale: (I, P, m), the factor of each column of a panel if the panels are int8, else None.
    """

    name: str
    panels: Array
    bias: Array | None
    out_features: int
    scale: Array | None = None

    @property
    def padded_features(self) -> int:
        """The number of outputs with padding, P·m."""
        return int(self.panels.shape[1] * self.panels.shape[3])

    def panel_range(self, panels: slice) -> PackedLinear:
        """Return a layer that computes only the outputs of the given panels, padding included."""
        m = self.panels.shape[3]
        columns = slice(panels.start * m, panels.stop * m)
        bias = None if self.bias is None else self.bias[columns]
        scale = None if self.scale is None else self.scale[:, panels]
        n_columns = columns.stop - columns.start
        return PackedLinear(self.name, self.panels[:, panels], bias, n_columns, scale)


@dataclass(frozen=True)
class PackedHeads:
    """The weights of the linear layer that computes queries, keys and values, split by head.

    Attributes:
        panels: (I, 3, H, k, D): I groups of k inputs; queries, keys, values; H heads; D channels.
        bias: (3, H, 1, D).
        scale: (I, 3, H, D), the factor of each column of a panel if the panels are int8, else None.
    """

    panels: Array
    bias: Array
    scale: Array | None = None


class LinearOutput:
    """Memory for the output of a linear layer for n rows, which later calls can overwrite.

    Attributes:
        y: (n, P·m).
        by_panel: (P, n, m), a view of `y`.
        partials: (I, P, n, m), partial products of I groups of inputs. Each product is contiguous:
            rows at multiples of 4,096 bytes would displace each other from the cache. With one
            group, the product is written to `by_panel`.
    """

    def __init__(self, w: PackedLinear, n: int, dtype: np.dtype[Any]) -> None:
        groups, n_panels, _, m = w.panels.shape
        self.y = np.empty((n, n_panels * m), dtype)
        self.by_panel = self.y.reshape(n, n_panels, m).swapaxes(0, 1)
        self.partials = self.by_panel[None]
        if groups > 1:
            self.partials = np.empty((groups, n_panels, n, m), dtype)


def linear(
    x: Array,
    w: PackedLinear,
    then: Callable[[Array], Array] | None = None,
    output: LinearOutput | None = None,
) -> Array:
    """Compute x @ matrix + bias for x (n, C), then the elementwise function `then`, if given.

    Returns (n, out_features). If `output` is given, the result can be a view of `output`.
    """
    groups, _, k, _ = w.panels.shape
    if output is None:
        output = LinearOutput(w, x.shape[0], x.dtype)
    if groups > 1 or k > x.shape[1]:
        x = _split_k(x, groups, k)[:, None]
    matmul(x, w.panels, out=output.partials)
    if w.scale is not None:
        np.multiply(output.partials, w.scale[:, :, None], out=output.partials)
    if groups > 1:
        sum_partials(output.partials, out=output.by_panel)
    y = output.y
    if w.bias is not None:
        y += w.bias
    y = y[:, : w.out_features]
    return then(y) if then else y


def project_heads(x: Array, w: PackedHeads, heads: slice) -> Array:
    """Project x (N, C) to q, k and v of a slice of h heads. Returns (3, h, N, D)."""
    groups, _, _, k, _ = w.panels.shape
    if groups > 1 or k > x.shape[1]:
        x = _split_k(x, groups, k)[:, None, None]
    qkv = matmul(x, w.panels[:, :, heads])
    if w.scale is not None:
        qkv *= w.scale[:, :, heads, None]
    qkv = sum_partials(qkv) if groups > 1 else qkv[0]
    qkv += w.bias[:, heads]
    return qkv


def _split_k(x: Array, groups: int, k: int) -> Array:
    """Split the channels of x (n, C) into groups of k, padded with zeros: (groups, n, k)."""
    if groups * k > x.shape[1]:
        x = np.pad(x, ((0, 0), (0, groups * k - x.shape[1])))
    return x.reshape(-1, groups, k).swapaxes(0, 1)


def sum_partials(partials: Array, out: Array | None = None) -> Array:
    """Sum two or more arrays partials[0], partials[1], … in this order (unlike np.sum).

    The sum is written to `out`, by default partials[0]. Overwrites partials[0].
    """
    total: Array = partials[0]
    for partial in partials[1:-1]:
        total += partial
    result: Array = total if out is None else out
    np.add(total, partials[-1], out=result)
    return result


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
