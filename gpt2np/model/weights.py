"""A model's weights by name, and packed in the structure that the forward pass reads.

Every matrix is copied into panels (`gpt2np.kernels.packed_matrix`), which replace the original
array. After that, the weights' file is not read again, and may be replaced.

The copies take a second or less, but longer than a short pass. Where they change no bit, a short
first pass therefore reads the mapped file: the first token of a program comes sooner.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from gpt2np.checkpoint.config import LM_HEAD, WTE, GPT2Config, weight_shapes
from gpt2np.checkpoint.safetensors_file import StoredArray, memory_map, release
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import halves_long_sums, small_kernels
from gpt2np.kernels.exact import ExactLinear
from gpt2np.kernels.packed_matrix import (
    CHUNK_COLUMNS,
    PackedMatrix,
    UnpackedMatrix,
    packed_size,
)
from gpt2np.model.ops import ACTIVATIONS, layer_norm
from gpt2np.progress import progress_bar

_EMBEDDINGS = (WTE, LM_HEAD)  # stored as [out, in], unlike all other matrices
_PANEL_WIDTH = 64  # outputs
_MAX_GROUP = 192  # inputs of one panel; MKL, too, sums so many at once
_MAX_UNDIVIDED_SUM = 320  # products; GEMM cuts longer sums (`halves_long_sums`)
_SLOW_SIZE = 100_000_000  # numbers whose conversion takes about a second


L = TypeVar("L")  # the weights of a linear layer


@dataclass(frozen=True)
class BlockWeights(Generic[L]):
    """The weights of one transformer block, and its settings from the config.

    Attributes:
        layer: the block's index.
        attention_scale: the factor of the attention scores, by default 1 / √D.
        activation: the MLP's elementwise activation function.
    """

    layer: int
    ln_1: Callable[[Array], Array]
    c_attn: L
    attn_c_proj: L
    ln_2: Callable[[Array], Array]
    c_fc: L
    mlp_c_proj: L
    attention_scale: float
    activation: Callable[[Array], Array]


@dataclass(frozen=True)
class ModelWeights(Generic[L]):
    """The weights in the structure of the forward pass.

    Attributes:
        wte: (V, C), the token embeddings, or the unembedding (C, V) that gives them by index.
        wpe: (n_positions, C), the position embeddings.
        blocks: the weights of each block.
        ln_f: the final layer norm.
        lm_head: the unembedding (C, V).
    """

    wte: Array | PackedMatrix
    wpe: Array
    blocks: Sequence[BlockWeights[L]]
    ln_f: Callable[[Array], Array]
    lm_head: L


class Weights(Mapping[str, Array]):
    """A model's weights, an immutable mapping from names to read-only arrays.

    Reading an entry returns a view, or a copy of a packed matrix.

    Attributes:
        layers: the weights in the structure of the forward pass; see `prepare`.
        dtype: the dtype of all weights.
        is_quantized: whether the matrices are packed as int8.
    """

    def __init__(
        self,
        config: GPT2Config,
        arrays: Mapping[str, Array],
        *,
        quantize: bool = False,
        exact: bool = False,
    ) -> None:
        """Pack the weights, named as in `weight_shapes`; see `GPT2` for the arguments and errors.

        With `quantize`, the matrices are `PackedMatrix` of int8, and vectors keep the dtype. With
        `exact`, the matrices are `ExactLinear`, and vectors are float64.
        """
        given = _checked(config, arrays)
        self.dtype = np.dtype(np.float64) if exact else given[WTE].dtype
        self.is_quantized = quantize
        self._config = config
        self._shapes = {name: array.shape for name, array in given.items()}
        self._panel_shapes = {} if exact else _panel_shapes(config, given, quantize)
        self._arrays = {
            name: np.array(array, self.dtype)
            for name, array in given.items()
            if name not in self._panel_shapes
        }
        self._unpacked = {name: given[name] for name in self._panel_shapes}  # until `pack`
        self._was_used, self._lock = False, threading.Lock()
        self._matrices: dict[str, PackedMatrix] = {}
        self.layers: ModelWeights[Any]  # of PackedMatrix or ExactLinear
        if exact:
            self._use({})
        elif views := self._views():
            self._use(views)
        else:
            self.pack()

    def prepare(self, *, is_short: bool) -> None:
        """Pack the matrices before a pass, unless it is the first pass and short."""
        if self._unpacked and (self._was_used or not is_short):
            self.pack()
        self._was_used = True

    def pack(self) -> None:
        """Copy every matrix into panels, if that is not done yet."""
        with self._lock:
            if self._unpacked:
                self._use(self._pack(self._unpacked))
                self._unpacked = {}

    def _use(self, matrices: Mapping[str, PackedMatrix]) -> None:
        self._matrices = dict(matrices)
        self.layers = self._arrange()

    def _views(self) -> dict[str, PackedMatrix]:
        """Return the matrices in the mapped file; none if one of them must be copied."""
        arrays, matrices = self._unpacked, dict[str, PackedMatrix]()
        if self.is_quantized or not small_kernels() or not all(map(memory_map, arrays.values())):
            return {}
        for name, panel_shape in self._panel_shapes.items():
            kind = UnpackedMatrix if name in _EMBEDDINGS else PackedMatrix
            view = kind.view_of(_matrix(name, arrays[name]), panel_shape)
            if view is None:
                return {}
            matrices[name] = view
        return matrices

    def _pack(self, arrays: Mapping[str, Array]) -> dict[str, PackedMatrix]:
        matrices = self._allocate()
        is_copy = not any(isinstance(array, StoredArray) for array in arrays.values())
        is_fast = self.parameters < _SLOW_SIZE or (is_copy and not self.is_quantized)
        work = "quantizing" if self.is_quantized else "loading"
        with progress_bar(self.parameters, work, "parameter", False if is_fast else None) as bar:
            for name, packed in matrices.items():
                self._pack_matrix(name, arrays[name], packed)
                bar.update(math.prod(self._shapes[name]))
        return matrices

    def _pack_matrix(self, name: str, array: Array, packed: PackedMatrix) -> None:
        matrix = _matrix(name, np.asarray(array, self.dtype))
        chunk = CHUNK_COLUMNS if name in _EMBEDDINGS else matrix.shape[1]
        for start in range(0, matrix.shape[1], chunk):
            columns = matrix[:, start : start + chunk]
            if self.is_quantized and not np.isfinite(columns).all():
                raise InvalidArgumentError(
                    f"{name} has NaN or infinity, which int8 can't hold; omit weights='int8'"
                )
            packed.fill(columns, start)
            release(columns)

    def _allocate(self) -> dict[str, PackedMatrix]:
        """Allocate the panels of all matrices in one array, for which NumPy requests huge pages."""
        panels = self._panel_shapes
        shapes = {name: _matrix_shape(name, self._shapes[name]) for name in panels}
        sizes = [packed_size(shape, panels[name]) for name, shape in shapes.items()]
        buffer = np.empty(sum(sizes), np.int8 if self.is_quantized else self.dtype)
        parts = np.split(buffer, np.cumsum(sizes[:-1]))
        return {
            name: PackedMatrix.in_buffer(part, shape, panels[name], self.dtype)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def _arrange(self) -> ModelWeights[Any]:
        matrices, arrays, epsilon = self._matrices, self._arrays, self._config.layer_norm_epsilon

        def norm(name: str) -> Callable[[Array], Array]:
            weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
            return partial(layer_norm, weight=weight, bias=bias, epsilon=epsilon)

        def linear(name: str) -> PackedMatrix | ExactLinear:
            weight, bias = f"{name}.weight", arrays[f"{name}.bias"]
            if weight not in matrices:
                return ExactLinear.of(arrays[weight].T, bias)
            return replace(matrices[weight], bias=_padded(bias, matrices[weight]))

        head = LM_HEAD if LM_HEAD in self else WTE
        lm_head = matrices[head] if matrices else ExactLinear.of(arrays[head])
        wte = matrices[WTE] if matrices else arrays[WTE]
        return arrange(self._config, wte, arrays["wpe.weight"], norm, linear, lm_head)

    def gather_rows(self, name: str, indices: IntArray) -> Array:
        """Return the rows of an embedding (V, C) at n indices, without unpacking the whole matrix.

        Returns (n, C).
        """
        if name in self._matrices:
            return self._matrices[name][indices]
        return self._arrays[name][indices]

    def __getitem__(self, name: str) -> Array:
        if name not in self._shapes:
            raise KeyError(f"the model has no weight {name!r}; list(model.weights) has the names")
        if name in self._arrays:
            array = self._arrays[name].view()
        else:
            matrix = self._matrices[name].unpack()
            array = matrix.T.copy() if name in _EMBEDDINGS else matrix
        array.flags.writeable = False  # a change would not change the model, or only in part
        return array

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
    def max_width(self) -> int:
        """The largest number of outputs of a linear layer, padding included."""
        return max(
            packed_size((1, _matrix_shape(name, self._shapes[name])[1]), (1, width))
            for name, (_, width) in self._panel_shapes.items()
        )

    @property
    def nbytes(self) -> int:
        """The size of all weights in bytes, padding of packed matrices included."""
        packed = [array for m in self._matrices.values() for array in (m.data, m.scale)]
        return sum(a.nbytes for a in [*self._arrays.values(), *packed] if a is not None)


def _checked(config: GPT2Config, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the model's arrays in the order of the pass; check their shapes and dtypes."""
    shapes = weight_shapes(config, head=LM_HEAD in arrays)
    for name, shape in shapes.items():
        if name not in arrays:
            raise InvalidArgumentError(f"the weights lack {name}")
        if arrays[name].shape != shape:
            raise InvalidArgumentError(f"{name} has shape {arrays[name].shape}, expected {shape}")
        dtype = arrays[name].dtype
        if dtype.kind not in "fiu" or (name == WTE and dtype not in (np.float32, np.float64)):
            raise InvalidArgumentError(
                f"{name} has dtype {dtype}, expected float32 or float64; convert the weights with "
                "array.astype(np.float32)"
            )
    return {name: arrays[name] for name in shapes}


def _matrix(name: str, array: Array) -> Array:
    """Return an array as a matrix [in, out]."""
    return array.T if name in _EMBEDDINGS else array


def _matrix_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of `_matrix(name, array)` for an array of this shape."""
    n_in, n_out = shape
    return (n_out, n_in) if name in _EMBEDDINGS else (n_in, n_out)


def _padded(bias: Array, matrix: PackedMatrix) -> Array:
    """Return a bias (out) with the padding of the matrix's columns."""
    padded = np.zeros(matrix.data.shape[1::2], bias.dtype)  # (P, m)
    padded[:, : matrix.panel_shape[1]].flat[: len(bias)] = bias
    return padded.reshape(-1)


def _panel_shapes(
    config: GPT2Config, names: Iterable[str], quantize: bool
) -> dict[str, tuple[int, int]]:
    """Return the inputs and outputs of a panel of each matrix.

    A panel of c_attn computes the queries, keys or values of one head. A product is summed over
    groups of inputs (split-K): short sums round less (docs/internals/numbers.md). Integers are the
    same on every machine, so their groups are, too.
    """
    c, f = _group_size(config.n_embd), _group_size(config.n_inner)
    if halves_long_sums() and not quantize:
        c, f = _joined_groups(config.n_embd, c), _joined_groups(config.n_inner, f)
    d = config.n_embd // config.n_head
    panels = {
        WTE: (c, _PANEL_WIDTH),
        LM_HEAD: (c, _PANEL_WIDTH),
        "attn.c_attn.weight": (c, d),
        "attn.c_proj.weight": (c, _PANEL_WIDTH),
        "mlp.c_fc.weight": (c, _PANEL_WIDTH),
        "mlp.c_proj.weight": (f, _PANEL_WIDTH),
    }
    return {name: shape for name in names for end, shape in panels.items() if name.endswith(end)}


def _group_size(n: int) -> int:
    """Return the number of inputs per split-K group, for n inputs; preferably a divisor of n."""
    groups = -(-n // _MAX_GROUP)
    even = [i for i in range(groups, 2 * groups + 1) if n % i == 0]
    return n // even[0] if even else -(-n // groups)


def _joined_groups(n: int, size: int) -> int:
    """Return the inputs of two groups if they divide n and GEMM halves them, else of one group."""
    return 2 * size if 2 * size > _MAX_UNDIVIDED_SUM and n % (2 * size) == 0 else size


def arrange(
    config: GPT2Config,
    wte: Array | PackedMatrix,
    wpe: Array,
    norm: Callable[[str], Callable[[Array], Array]],
    linear: Callable[[str], L],
    lm_head: L,
) -> ModelWeights[L]:
    """Return the weights in the structure of the forward pass.

    `norm` and `linear` return the layer norm or linear layer of a name, such as "h.0.ln_1".
    """
    blocks = [
        BlockWeights(
            layer=i,
            ln_1=norm(f"h.{i}.ln_1"),
            c_attn=linear(f"h.{i}.attn.c_attn"),
            attn_c_proj=linear(f"h.{i}.attn.c_proj"),
            ln_2=norm(f"h.{i}.ln_2"),
            c_fc=linear(f"h.{i}.mlp.c_fc"),
            mlp_c_proj=linear(f"h.{i}.mlp.c_proj"),
            attention_scale=config.attention_scale(i),
            activation=ACTIVATIONS[config.activation_function],
        )
        for i in range(config.n_layer)
    ]
    return ModelWeights(wte, wpe, blocks, norm("ln_f"), lm_head)
