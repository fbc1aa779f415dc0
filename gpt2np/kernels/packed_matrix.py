"""Matrices cut into panels, in the order in which products read them; linear layers with them.

Small-matrix kernels read one panel after another, as in BLIS. Any other BLAS multiplies by many
columns at once. There, a large matrix is stored as [out, in], as in torch.nn.Linear: the weights of
any range of outputs, of one rank or head, are contiguous. Small matrices and those of int8, whose
panels are converted before each product, stay in panels.

With few rows (tokens), reading the matrix takes most of the time, so threads share the matrix
(`gpt2np.kernels.matmul`, whose table says how each product is computed). With many rows, threads
share the rows (`by_rows`). Each thread then computes several layers for one chunk of rows, so that
the activations between the layers stay in one core's cache.

Shape letters: n rows; I groups of k inputs by P panels of m outputs in a packed matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads, small_kernels
from gpt2np.kernels.matmul import LANES, SMALL_BATCH, matmul, split_k
from gpt2np.kernels.threads import even_slices, parallel_for

MIN_SIZE_BY_OUTPUT = 2**19
"""The fewest weights of a matrix that is stored as [out, in], without small-matrix kernels.

Smaller matrices stay in the cache, and GEMM copies their panels faster than it transposes them: on
Zen 3, the bundled model takes 0.7 to 0.9 of the time for 1 to 16 sequences.
"""

CHUNK_COLUMNS = 2048
"""Columns of a transposed matrix that are packed at a time: whole panels."""

_MIN_SHARED_SIZE = 100_000  # numbers; copying fewer takes less time than waking a thread
_FILLED_SIZE = 500_000  # numbers copied by one call, which should stay in the cache

_MAX_CHUNK = 64  # rows
_MAX_GEMM_CHUNK = 256  # rows; GEMM copies its matrix once per chunk
_MAX_REDUCED = 4096  # numbers; one reduction of more is slower than a loop of additions


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A matrix [in, out] cut into panels.

    If `is_stored_by_output`, the weights of each output are contiguous, and `factors` returns the
    panels as one matrix, without a copy. Otherwise each panel is contiguous: the product of a few
    rows and one panel is small (`gpt2np.kernels.matmul`) and reads the panel sequentially. Zeros
    pad the last panel of each axis, and the width of each panel to a multiple of LANES.

    A matrix of int8 is quantized: each column of a panel has a scale, and a weight is its integer
    times the scale (`quantize`). A matrix with a bias is a linear layer.

    Attributes:
        data: (I, P, k, m): I groups of k inputs by P panels of m outputs.
        shape: (in, out), without padding.
        panel_shape: the number of inputs and outputs of one panel, without padding.
        scale: (I, P, m), if the matrix is quantized.
        bias: (P·m,), added to each row of a product, if given.
    """

    data: Array
    shape: tuple[int, int]
    panel_shape: tuple[int, int]
    scale: Array | None = None
    bias: Array | None = None
    _ranges: dict[tuple[int, int], PackedMatrix] = field(default_factory=dict, init=False)
    # Not a cached_property: before Python 3.12 it has a lock, which a fork could leave held.
    _joined: dict[int, Array] = field(default_factory=dict, init=False)

    def factors(self, n: int) -> Array:
        """Return the matrices that n rows multiply without small-matrix kernels.

        Returns the panels (I, P, k, m), or in their place (groups, 1, I / groups · k, P·m).
        """
        if not is_stored_by_output(self.data):
            return self.data
        groups = split_k(n, len(self.data))
        if groups not in self._joined:
            _, n_panels, _, m = self.data.shape
            by_output = self.data.transpose(1, 3, 0, 2).reshape(n_panels * m, groups, -1)  # a view
            self._joined[groups] = by_output.transpose(1, 2, 0)[:, None]
        return self._joined[groups]

    @classmethod
    def view_of(cls, matrix: Array, panel_shape: tuple[int, int]) -> PackedMatrix | None:
        """Return a view of a matrix [in, out] as panels, or None if the panels need a copy.

        The panels are not contiguous: with small-matrix kernels, products take twice the time and
        have the same bits.
        """
        i, p, k, m = _data_shape(matrix.shape, panel_shape)
        if (i * k, p * m) != matrix.shape or matrix.strides[1] != matrix.itemsize:
            return None
        return cls(matrix.reshape(i, k, p, m).swapaxes(1, 2), (i * k, p * m), panel_shape)

    @classmethod
    def in_buffer(
        cls,
        buffer: Array,
        shape: tuple[int, int],
        panel_shape: tuple[int, int],
        dtype: DTypeLike = np.float32,
    ) -> PackedMatrix:
        """Return a matrix stored in a flat buffer of `packed_size(shape, panel_shape)` numbers.

        The matrix is quantized if the buffer has int8; `dtype` is that of the scales.
        """
        i, p, k, m = _data_shape(shape, panel_shape)
        if buffer.dtype == np.int8:
            scale = np.ones((i, p, m), dtype)
            return cls(buffer.reshape(i, p, k, m), shape, panel_shape, scale)
        if small_kernels() or buffer.size < MIN_SIZE_BY_OUTPUT:
            return cls(buffer.reshape(i, p, k, m), shape, panel_shape)
        return cls(buffer.reshape(p, m, i, k).transpose(2, 0, 3, 1), shape, panel_shape)

    def column_range(self, start: int, stop: int) -> PackedMatrix:
        """Return a view of columns start … stop - 1; `start` must begin a panel.

        The view is kept: a rank requests the same columns in every pass.
        """
        if (start, stop) in self._ranges:
            return self._ranges[start, stop]
        m, padded = self.panel_shape[1], self.data.shape[3]
        first, last = start // m, -(-stop // m)
        self._ranges[start, stop] = part = replace(
            self,
            data=self.data[:, first:last],
            shape=(self.shape[0], stop - start),
            scale=None if self.scale is None else self.scale[:, first:last],
            bias=None if self.bias is None else self.bias[first * padded : last * padded],
        )
        return part

    def fill(self, matrix: Array, start: int = 0) -> None:
        """Overwrite the columns from `start` on with a matrix [in, n], finite if quantized.

        `start` must begin a panel. The last panel is padded with zeros.
        """
        m = self.panel_shape[1]
        n_panels = -(-matrix.shape[1] // m)
        threads = python_threads() if matrix.size > _MIN_SHARED_SIZE else 1

        def fill_panels(panels: slice) -> None:
            columns = matrix[:, panels.start * m : panels.stop * m]
            self._fill(columns, slice(start // m + panels.start, start // m + panels.stop))

        chunks = even_slices(n_panels, max(threads, matrix.size // _FILLED_SIZE))
        parallel_for(fill_panels, chunks, threads)

    def _fill(self, columns: Array, panels: slice) -> None:
        (groups, _, k, _), m = self.data.shape, self.panel_shape[1]
        n_panels = panels.stop - panels.start
        padding = groups * k - len(columns), n_panels * m - columns.shape[1]
        if any(padding):
            columns = np.pad(columns, [(0, padding[0]), (0, padding[1])])
        target = self.data[:, panels]
        if is_stored_by_output(target):
            # Rows of the matrix evict each other from the cache while they are transposed.
            columns = columns.copy("K")
        blocks = columns.reshape(groups, k, n_panels, m).swapaxes(1, 2)
        if self.scale is not None:
            blocks, self.scale[:, panels, :m] = quantize(blocks)
        target[..., :m], target[..., m:] = blocks, 0

    def parts(self) -> Iterator[PackedMatrix]:
        """Yield all columns in packed matrices, of which each is valid until the next."""
        yield self

    def unpack(self) -> Array:
        """Return the matrix [in, out] as a new array."""
        (groups, n_panels, k, _), m = self.data.shape, self.panel_shape[1]
        blocks = self.data[..., :m]
        if self.scale is not None:
            blocks = blocks * self.scale[:, :, None, :m]
        matrix = blocks.swapaxes(1, 2).reshape(groups * k, n_panels * m)
        return matrix[: self.shape[0], : self.shape[1]].copy()

    def __getitem__(self, indices: IntArray) -> Array:
        """Return the columns at n indices, as the rows of an array (n, in)."""
        p, j = np.divmod(indices, self.panel_shape[1])
        columns: Array = self.data[:, p, :, j]  # (n, I, k)
        if self.scale is not None:
            columns = columns * self.scale[:, p, j].T[..., None]
        n, groups, k = columns.shape
        return columns.reshape(n, groups * k)[:, : self.shape[0]]


class UnpackedMatrix(PackedMatrix):
    """A matrix [in, out] whose columns are contiguous; a product packs some columns at a time."""

    @classmethod
    def view_of(cls, matrix: Array, panel_shape: tuple[int, int]) -> UnpackedMatrix:
        return cls(matrix, (matrix.shape[0], matrix.shape[1]), panel_shape)

    def parts(self) -> Iterator[PackedMatrix]:
        n_in, n_out = self.shape
        size = packed_size((n_in, CHUNK_COLUMNS), self.panel_shape)
        buffer = np.empty(size, self.data.dtype)
        for start in range(0, n_out, CHUNK_COLUMNS):
            columns = self.data[:, start : start + CHUNK_COLUMNS]
            shape = n_in, columns.shape[1]
            memory = buffer[: packed_size(shape, self.panel_shape)]
            packed = PackedMatrix.in_buffer(memory, shape, self.panel_shape)
            packed.fill(columns)
            yield packed

    def unpack(self) -> Array:
        return self.data.copy()

    def __getitem__(self, indices: IntArray) -> Array:
        columns: Array = self.data.T[indices]
        return columns


def is_stored_by_output(panels: Array) -> bool:
    """Tell whether panels (…, k, m) are stored as [out, in], not panel by panel."""
    return panels.strides[-2] == panels.itemsize


def quantize(matrix: Array) -> tuple[Array, Array]:
    """Round each column (…, in, out) to integers of at most 127 times a scale: absmax quantization.

    The scales have 16 binary digits, so that integer times scale is exact: quantizing a quantized
    matrix again changes nothing.

    Returns the integers, in the matrix's shape and dtype, and the scales (…, out).
    """
    largest = np.maximum(matrix.max(-2), -matrix.min(-2))
    digits, exponent = np.frexp(largest / 127)
    scale = np.ldexp(np.ceil(digits * 2**16) / 2**16, exponent)
    scale = np.where(scale > 0, scale, 1).astype(matrix.dtype)
    return np.rint(matrix / scale[..., None, :]), scale


def packed_size(shape: tuple[int, int], panel_shape: tuple[int, int]) -> int:
    """Return how many numbers a packed matrix holds, padding included."""
    return math.prod(_data_shape(shape, panel_shape))


def _data_shape(shape: tuple[int, int], panel_shape: tuple[int, int]) -> tuple[int, int, int, int]:
    (n_in, n_out), (k, m) = shape, panel_shape
    return -(-n_in // k), -(-n_out // m), k, round_up(m)


def round_up(n: int) -> int:
    """Round n up to a multiple of LANES, the unit of padding."""
    return -(-n // LANES) * LANES


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
        qkv = qkv.reshape(len(factors), 3, n, heads.stop - heads.start, d).swapaxes(2, 3)
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
