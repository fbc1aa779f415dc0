"""A model's weights by name, and the packing of matrices for fast products.

Packing copies every matrix into panels (`gpt2np.kernels.packed_matrix`). This takes longer than a
short pass, so with small-matrix kernels a short first pass reads the memory-mapped file directly.
Any other pass first packs the matrices: with other kernels, packed and unpacked matrices round
differently. The panels then replace the original arrays. Quantized matrices are packed immediately,
in the constructor.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.checkpoint.safetensors_file import read_ahead, release
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import small_kernels
from gpt2np.kernels.packed_matrix import PackedMatrix, packed_size
from gpt2np.progress import progress_bar

_SLOW_SIZE = 100_000_000  # numbers whose quantization takes about a second
_CHUNK_COLUMNS = 2048  # columns of a transposed matrix packed at a time; whole panels


@dataclass(frozen=True)
class Packing:
    """How one weight array is packed.

    Attributes:
        panel_shape: the number of inputs and outputs of one panel.
        is_transposed: whether the array is stored as [out, in] instead of [in, out].
    """

    panel_shape: tuple[int, int]
    is_transposed: bool = False

    def matrix(self, array: Array) -> Array:
        """Return the array as a matrix [in, out]; a vector becomes a matrix with one row."""
        return array.T if self.is_transposed else np.atleast_2d(array)

    def matrix_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the shape of `matrix(array)` for an array of this shape."""
        n_in, n_out = shape if len(shape) == 2 else (1, *shape)
        return (n_out, n_in) if self.is_transposed else (n_in, n_out)


@dataclass(frozen=True)
class WeightSource:
    """The weights during one pass.

    Attributes:
        arrays: the arrays that are not packed; before packing, all arrays.
        matrices: the packed matrices; none before packing.
        packings: how to pack each matrix.
    """

    arrays: Mapping[str, Array]
    matrices: Mapping[str, PackedMatrix]
    packings: Mapping[str, Packing]

    def packed(self, name: str) -> PackedMatrix:
        """Return a weight matrix cut into panels, the blocks that fast products read."""
        if name in self.matrices:
            return self.matrices[name]
        packing = self.packings[name]
        return PackedMatrix.of(packing.matrix(self.arrays[name]), packing.panel_shape)

    def packed_parts(self, name: str) -> Iterator[PackedMatrix]:
        """Yield consecutive groups of columns of a transposed matrix, in panels.

        Groups may share a buffer, so use each group before requesting the next group.
        """
        if name in self.matrices:
            yield self.matrices[name]
            return
        packing = self.packings[name]
        matrix, panel_shape = packing.matrix(self.arrays[name]), packing.panel_shape
        read_ahead(matrix)
        buffer = np.empty(packed_size((len(matrix), _CHUNK_COLUMNS), panel_shape), matrix.dtype)
        for start in range(0, matrix.shape[1], _CHUNK_COLUMNS):
            columns = matrix[:, start : start + _CHUNK_COLUMNS]
            size = packed_size(columns.shape, panel_shape)
            packed = PackedMatrix.in_buffer(buffer[:size], columns.shape, panel_shape)
            packed.fill(columns)
            yield packed

    def gather_rows(self, name: str, indices: IntArray) -> Array:
        """Return the rows of an embedding (V, C) at n indices. Returns (n, C)."""
        if name in self.matrices:
            return self.matrices[name].gather_columns(indices)
        return self.arrays[name][indices]

    def prefetch(self, prefix: str) -> None:
        """Read the weights whose names begin with `prefix` into memory."""
        for name, array in self.arrays.items():
            if name.startswith(prefix):
                read_ahead(array)


class PackedWeights(MutableMapping[str, Array]):
    """A mapping from names to weight arrays. `for_pass` packs the matrices when necessary.

    Reading an entry returns a read-only copy or view. Assigning a weight changes the model.

    Attributes:
        dtype: the dtype of all weights.
        version: the number of assignments. Workers forked at a lower version have outdated weights.
        is_quantized: whether the matrices are packed as int8.
        was_used: whether a pass has used the weights, or the matrices are packed.
        lock: keeps other threads from assigning weights.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        dtype: np.dtype[Any],
        packings: Mapping[str, Packing],
        arrange: Callable[[WeightSource, bool], Any],
        *,
        quantize: bool = False,
    ) -> None:
        """Convert the arrays to `dtype`; pack them only if they are quantized.

        Args:
            arrays: the weights by name. With `quantize`, each matrix is read, packed and released
                before the next one, so that memory holds one matrix that is not quantized.
            dtype: the dtype of all weights.
            packings: how to pack each matrix, by name; weights without a packing stay plain arrays.
                Without any packing, `arrange` is called once, at the first pass.
            arrange: arrange(source, is_packed) builds the object that `for_pass` returns.
            quantize: pack the matrices as int8 (`PackedMatrix`); vectors keep `dtype`.

        Raises:
            InvalidArgumentError: with `quantize`, a weight has NaN or infinity.
        """
        self.dtype = dtype
        self.version = 0
        self.is_quantized = quantize
        self._shapes = {name: array.shape for name, array in arrays.items()}
        self._arrays = dict(arrays)
        self._matrices: dict[str, PackedMatrix] = {}
        self._packings = packings
        self._arrange = arrange
        self._packed_pass: Any = None
        self.was_used = False
        self.lock = threading.RLock()
        if quantize:
            self.for_pass(short=False)
        else:
            self._arrays = {name: np.asarray(array, dtype) for name, array in arrays.items()}

    def for_pass(self, *, short: bool) -> Any:
        """Return the weights for one pass, as the constructor's argument `arrange` builds them.

        Packs the matrices before the first pass. Only with small-matrix kernels does a short first
        pass read unpacked matrices; the second pass then packs them. With other kernels, packing
        changes the rounding, so equal calls would have different results.
        """
        if self._packed_pass is not None:
            return self._packed_pass  # no lock: in a forked child, it may stay locked
        with self.lock:
            if self._packed_pass is None:
                if short and not self.was_used and self._packings and small_kernels():
                    self.was_used = True
                    source = WeightSource(dict(self._arrays), {}, self._packings)
                    return self._arrange(source, False)
                self.was_used = True  # if packing is interrupted, some arrays are gone already
                self._pack()
                self._packed_pass = self._arrange(self._source, True)
            return self._packed_pass

    @property
    def _source(self) -> WeightSource:
        return WeightSource(self._arrays, self._matrices, self._packings)

    def _pack(self) -> None:
        """Copy every matrix into panels, freeing each original at once; copy all other arrays."""
        names = [name for name in self._arrays if name in self._packings]
        is_slow = self.is_quantized and self.parameters > _SLOW_SIZE
        progress = None if is_slow else False
        with progress_bar(self.parameters, "quantizing", "parameter", progress) as bar:
            for name, packed in self._allocate(names).items():
                self._pack_matrix(name, packed)
                self._matrices[name] = packed
                del self._arrays[name]
                bar.update(math.prod(self._shapes[name]))
        # From now on the file may be replaced: nothing is read from its mapping any more.
        self._arrays = {name: np.array(array, self.dtype) for name, array in self._arrays.items()}

    def _pack_matrix(self, name: str, packed: PackedMatrix) -> None:
        packing = self._packings[name]
        matrix = packing.matrix(np.asarray(self._arrays[name], self.dtype))
        chunk = _CHUNK_COLUMNS if packing.is_transposed else matrix.shape[1]
        for start in range(0, matrix.shape[1], chunk):
            columns = matrix[:, start : start + chunk]
            self._check_finite(name, columns)
            packed.column_range(start, start + columns.shape[1]).fill(columns)
            release(columns)

    def _allocate(self, names: Sequence[str]) -> dict[str, PackedMatrix]:
        """Allocate the panels of all matrices in one array, for which NumPy requests huge pages.

        Quantized matrices share an array of int8, and the vectors another array.
        """
        if self.is_quantized:
            matrices = [name for name in names if len(self._shapes[name]) == 2]
            vectors = [name for name in names if name not in matrices]
            packed = self._allocate_as(np.dtype(np.int8), matrices)
            quantized = {name: matrix.quantized(self.dtype) for name, matrix in packed.items()}
            return quantized | self._allocate_as(self.dtype, vectors)
        return self._allocate_as(self.dtype, names)

    def _allocate_as(self, dtype: np.dtype[Any], names: Sequence[str]) -> dict[str, PackedMatrix]:
        shapes = {n: self._packings[n].matrix_shape(self._shapes[n]) for n in names}
        sizes = [packed_size(shape, self._packings[n].panel_shape) for n, shape in shapes.items()]
        starts = np.cumsum([0, *sizes]).tolist()
        buffer = np.empty(starts[-1], dtype)
        return {
            name: PackedMatrix.in_buffer(
                buffer[start:stop], shapes[name], self._packings[name].panel_shape
            )
            for name, start, stop in zip(names, starts, starts[1:], strict=False)
        }

    def gather_rows(self, name: str, indices: IntArray) -> Array:
        """Return the rows of an embedding (V, C) at n indices, without unpacking the whole matrix.

        Returns (n, C).
        """
        with self.lock:
            return self._source.gather_rows(name, indices)

    def __getitem__(self, name: str) -> Array:
        self._check_name(name)
        with self.lock:
            if name in self._arrays:
                view = self._arrays[name].view()
                view.flags.writeable = False
                return view
            matrix = self._matrices[name].unpack()
        is_transposed = self._packings[name].is_transposed
        array = matrix.T if is_transposed else matrix.reshape(self._shapes[name])
        array.flags.writeable = False  # a change of this copy would not change the model
        return array

    def __setitem__(self, name: str, array: Array) -> None:
        self._check_name(name)
        if np.shape(array) != self._shapes[name]:
            raise InvalidArgumentError(
                f"{name} has shape {np.shape(array)}, expected {self._shapes[name]}"
            )
        with self.lock:
            if name in self._matrices:
                matrix = self._packings[name].matrix(np.asarray(array, self.dtype))
                self._check_finite(name, matrix)
                self.version += 1
                self._matrices[name].fill(matrix)
                return
            self.version += 1
            self._arrays[name] = np.array(array, self.dtype)
            if self._packed_pass is not None:
                self._packed_pass = self._arrange(self._source, True)

    def _check_name(self, name: str) -> None:
        if name not in self._shapes:
            raise KeyError(f"the model has no weight {name!r}; list(model.weights) has the names")

    def _check_finite(self, name: str, array: Array) -> None:
        if self.is_quantized and not np.isfinite(array).all():
            raise InvalidArgumentError(
                f"{name} has NaN or infinity, which int8 can't hold; omit weights='int8'"
            )

    def __delitem__(self, name: str) -> None:
        raise TypeError("a model needs all of its weights")

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def parameters(self) -> int:
        """The total number of parameters."""
        return sum(map(math.prod, self._shapes.values()))

    @property
    def nbytes(self) -> int:
        """The size of all parameters in bytes, without padding."""
        if self.is_quantized:
            return quantized_nbytes(self._shapes, self._packings, self.dtype.itemsize)
        return self.parameters * self.dtype.itemsize


def quantized_nbytes(
    shapes: Mapping[str, tuple[int, ...]], packings: Mapping[str, Packing], itemsize: int = 4
) -> int:
    """Return the bytes of weights whose matrices are int8, with a scale per panel and column.

    Scales and all other weights have `itemsize` bytes.
    """
    n_bytes = 0
    for name, shape in shapes.items():
        if name in packings and len(shape) == 2:
            n_in, n_out = packings[name].matrix_shape(shape)
            n_groups = -(-n_in // packings[name].panel_shape[0])
            n_bytes += math.prod(shape) + itemsize * n_groups * n_out
        else:
            n_bytes += itemsize * math.prod(shape)
    return n_bytes
