"""A model's weights by name, and packed in the structure that the forward pass reads.

Every matrix is copied into panels (`gpt2np.kernels.packed_matrix`), which replace the original
array. After that, the weights' file is not read again, and may be replaced.

The copies take a second or less, but longer than a short pass. Where they change no bit, a short
first pass therefore reads the mapped file: the first token of a program comes sooner.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from gpt2np.checkpoint.config import LM_HEAD, WTE, GPT2Config, weight_shapes
from gpt2np.checkpoint.safetensors_file import StoredArray, memory_map, release
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array
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
        self._is_quantized = quantize
        self._config = config
        self._shapes = {name: array.shape for name, array in given.items()}
        self._layouts = {} if exact else _layouts(config, self._shapes, quantize)
        self._arrays = {
            name: np.array(array, self.dtype)
            for name, array in given.items()
            if name not in self._layouts
        }
        self._unpacked = {name: given[name] for name in self._layouts}  # until packed
        self._was_used, self._lock = False, threading.Lock()
        self._matrices: dict[str, PackedMatrix]
        self.layers: ModelWeights[Any]  # of PackedMatrix or ExactLinear
        views = self._views()
        if views or exact:
            self._use(views)
        else:
            self.prepare(is_short=False)

    def prepare(self, *, is_short: bool) -> None:
        """Pack the matrices before a pass, unless it is the first pass and short."""
        if self._unpacked and (self._was_used or not is_short):
            with self._lock:
                if self._unpacked:  # another thread may have packed them
                    self._use(self._pack())
                    self._unpacked = {}
        self._was_used = True

    def _views(self) -> dict[str, PackedMatrix]:
        """Return the matrices in the mapped file; none if one of them must be copied."""
        arrays, matrices = self._unpacked, dict[str, PackedMatrix]()
        if self._is_quantized or not small_kernels() or not all(map(memory_map, arrays.values())):
            return {}
        for name, (_, panel_shape) in self._layouts.items():
            kind = UnpackedMatrix if name in _EMBEDDINGS else PackedMatrix
            view = kind.view_of(_matrix(name, arrays[name]), panel_shape)
            if view is None:
                return {}
            matrices[name] = view
        return matrices

    def _pack(self) -> dict[str, PackedMatrix]:
        """Copy the matrices into panels in one array, for which NumPy requests huge pages."""
        arrays, sizes = self._unpacked, [packed_size(*layout) for layout in self._layouts.values()]
        buffer = np.empty(sum(sizes), np.int8 if self._is_quantized else self.dtype)
        parts = np.split(buffer, np.cumsum(sizes[:-1]))
        is_copy = not any(isinstance(array, StoredArray) for array in arrays.values())
        is_fast = self.parameters < _SLOW_SIZE or (is_copy and not self._is_quantized)
        work, matrices = "quantizing" if self._is_quantized else "loading", {}
        with progress_bar(self.parameters, work, "parameter", False if is_fast else None) as bar:
            for (name, layout), part in zip(self._layouts.items(), parts, strict=True):
                matrices[name] = PackedMatrix.in_buffer(part, *layout, self.dtype)
                self._fill(matrices[name], name)
                bar.update(math.prod(self._shapes[name]))
        return matrices

    def _fill(self, packed: PackedMatrix, name: str) -> None:
        matrix = _matrix(name, np.asarray(self._unpacked[name], self.dtype))
        chunk = CHUNK_COLUMNS if name in _EMBEDDINGS else matrix.shape[1]
        for start in range(0, matrix.shape[1], chunk):
            columns = matrix[:, start : start + chunk]
            if self._is_quantized and not np.isfinite(columns).all():
                raise InvalidArgumentError(
                    f"{name} has NaN or infinity, which int8 can't hold; omit weights='int8'"
                )
            packed.fill(columns, start)
            release(columns)

    def _use(self, matrices: dict[str, PackedMatrix]) -> None:
        """Arrange these matrices, or else the exact ones, in the order of the pass."""
        arrays, epsilon = self._arrays, self._config.layer_norm_epsilon

        def norm(name: str) -> Callable[[Array], Array]:
            weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
            return partial(layer_norm, weight=weight, bias=bias, epsilon=epsilon)

        def linear(name: str) -> PackedMatrix | ExactLinear:
            bias, matrix = arrays[f"{name}.bias"], matrices.get(f"{name}.weight")
            if matrix is None:
                return ExactLinear.of(arrays[f"{name}.weight"].T, bias)
            padded = np.zeros(matrix.data.shape[1::2], bias.dtype)  # (P, m), as the columns
            padded[:, : matrix.panel_shape[1]].flat[: len(bias)] = bias
            return replace(matrix, bias=padded.reshape(-1))

        head = LM_HEAD if LM_HEAD in self else WTE
        lm_head = matrices[head] if matrices else ExactLinear.of(arrays[head])
        wte = matrices[WTE] if matrices else arrays[WTE]
        self._matrices = matrices
        self.layers = arrange(self._config, wte, arrays["wpe.weight"], norm, linear, lm_head)

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
        return max(packed_size((1, n), (1, m)) for (_, n), (_, m) in self._layouts.values())

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


def _layouts(
    config: GPT2Config, shapes: Mapping[str, tuple[int, ...]], quantize: bool
) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Return the shape [in, out] of each matrix, and the inputs and outputs of a panel.

    A panel of c_attn computes the queries, keys or values of one head. A product is summed over
    groups of inputs (split-K): short sums round less (docs/internals/numbers.md). Integers are the
    same on every machine, so their groups are, too.
    """
    layouts = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and name != "wpe.weight":
            n_in, n_out = shape[::-1] if name in _EMBEDDINGS else shape
            width = config.n_embd // config.n_head if "c_attn" in name else _PANEL_WIDTH
            group = _group_size(n_in, halves_long_sums() and not quantize)
            layouts[name] = (n_in, n_out), (group, width)
    return layouts


def _group_size(n: int, is_halved: bool) -> int:
    """Return the inputs of a split-K group of n inputs: of two groups where GEMM halves sums."""
    groups = -(-n // _MAX_GROUP)
    divisors = [i for i in range(groups, 2 * groups + 1) if n % i == 0]
    size = n // divisors[0] if divisors else -(-n // groups)
    is_double = is_halved and 2 * size > _MAX_UNDIVIDED_SUM and n % (2 * size) == 0
    return 2 * size if is_double else size


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
