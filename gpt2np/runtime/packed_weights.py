"""A model's weights by GPT-2's names, in memory in the order in which a pass reads them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.checkpoint.safetensors_file import read_ahead, release
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.packed_matrix import Panels, panels_size

Array = NDArray[Any]

_WIDTH = 64  # outputs of one panel
_COLUMNS = 2048  # of an embedding, copied at a time; a multiple of _WIDTH
_INPUTS = 768  # of one group at most


@dataclass(frozen=True)
class Block:
    """One block's weights as the forward pass reads them: panels, and the vectors as they are.

    Attributes:
        c_attn: (I, 3, H, k, D), by I groups of k inputs. c_attn_bias: (3, H, 1, D).
        attn_c_proj, c_fc, mlp_c_proj: see `gpt2np.kernels.linear`. Their biases: (P·m).
        ln_1, ln_2: weight and bias, (C) each.
    """

    ln_1: tuple[Array, Array]
    c_attn: Array
    c_attn_bias: Array
    attn_c_proj: Array
    attn_c_proj_bias: Array
    ln_2: tuple[Array, Array]
    c_fc: Array
    c_fc_bias: Array
    mlp_c_proj: Array
    mlp_c_proj_bias: Array


@dataclass(frozen=True)
class InTurn:
    """The weights in the order in which a pass needs them.

    Attributes:
        embedded: ids (N,) → their rows of wte, (N, C).
        positions: wpe, (n_positions, C).
        blocks: the weights of each block.
        ln_f: weight and bias, (C) each.
        unembedding: panels of the unembedding (C, V), see `gpt2np.kernels.linear`, whole or in parts.
    """

    embedded: Callable[[NDArray[np.int64]], Array]
    positions: Array
    blocks: Iterable[Block]
    ln_f: tuple[Array, Array]
    unembedding: Iterable[Array]


class Weights(MutableMapping[str, Array]):
    """Name → array, see `gpt2np.checkpoint.names.weight_shapes`; matrices are `[in, out]`.

    Computing is fastest with matrices in panels. The first pass, if it is a short one, takes them
    as they lie in the mapped file, so that a first token need not wait for all to be copied. From
    the second pass on there are panels in place of the arrays that they were copied from.

    What is got is a copy or read-only; to change a weight, set it.

    Attributes:
        dtype: of all of them.
        changes: how often any has been set; a process that was forked before has the old ones.
    """

    def __init__(self, config: GPT2Config, arrays: Mapping[str, Array]) -> None:
        self._shapes = weight_shapes(config)
        self._shapes |= {LM_HEAD: self._shapes[WTE]} if LM_HEAD in arrays else {}
        self.dtype = arrays[WTE].dtype
        self._n_head, self._n_layer = config.n_head, config.n_layer
        self._cuts = layout(config)
        self._arrays = {name: np.asarray(arrays[name], self.dtype) for name in self._shapes}
        self._panels: dict[str, Panels] = {}
        self._laid_out: InTurn | None = None
        self._used = False
        self.changes = 0
        self._lock = threading.RLock()

    def for_pass(self, *, short: bool) -> InTurn:
        """The weights for one pass; laid out for good, unless it is the first and short."""
        if (laid_out := self._laid_out) is not None:
            return laid_out  # also in a fork, where another thread may have had the lock
        with self._lock:
            if self._laid_out is None:
                if short and not self._used:
                    self._used = True
                    return self._from_arrays(dict(self._arrays))
                self._lay_out()
                self._laid_out = self._from_panels()
            return self._laid_out

    @property
    def was_used(self) -> bool:
        """Whether there has been a pass."""
        return self._used or self._laid_out is not None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Other threads can't change them while this lasts."""
        with self._lock:
            yield

    def _lay_out(self) -> None:
        """Copy the matrices into panels, and let go of each when it is done."""
        names = [name for name in self._shapes if name in self._arrays and self._is_cut(name)]
        for name, panels in self._empty_panels(names).items():
            matrix = _matrix(name, self._arrays[name])
            each = _COLUMNS if name in (WTE, LM_HEAD) else matrix.shape[1]
            for start in range(0, matrix.shape[1], each):
                part = matrix[:, start : start + each]
                panels.some(start, start + part.shape[1]).fill(part)
                release(part)
            self._panels[name] = panels
            del self._arrays[name]

    def _from_panels(self) -> InTurn:
        token = self._panels[WTE]
        blocks = [self._block(f"h.{i}", self._panels, self._arrays) for i in range(self._n_layer)]
        unembedding = [self._panels.get(LM_HEAD, token).data]
        return _in_turn(token.columns, self._arrays, blocks, unembedding)

    def _from_arrays(self, arrays: Mapping[str, Array]) -> InTurn:
        def panels(name: str) -> Panels:
            return Panels.of(_matrix(name, arrays[name]), self._cut(name))

        def blocks() -> Iterator[Block]:
            for i in range(self._n_layer):
                names = [name for name in self._shapes if name.startswith(f"h.{i}.")]
                for name in names:
                    read_ahead(arrays[name])
                cut = {name: panels(name) for name in names if self._is_cut(name)}
                yield self._block(f"h.{i}", cut, arrays)

        def unembedding() -> Iterator[Array]:
            matrix, cut = arrays.get(LM_HEAD, arrays[WTE]).T, self._cuts[LM_HEAD]  # (C, V)
            read_ahead(matrix)
            room = np.empty(panels_size((len(matrix), _COLUMNS), cut), self.dtype)
            for start in range(0, matrix.shape[1], _COLUMNS):
                part = matrix[:, start : start + _COLUMNS]
                panels = Panels.within(room[: panels_size(part.shape, cut)], part.shape, cut)
                panels.fill(part)
                yield panels.data

        return _in_turn(lambda ids: arrays[WTE][ids], arrays, blocks(), unembedding())

    def _empty_panels(self, names: Sequence[str]) -> dict[str, Panels]:
        """Panels for some matrices, in one array: NumPy asks for huge pages where one is large."""
        shapes = {name: _matrix(name, self._arrays[name]).shape for name in names}
        sizes = [panels_size(shape, self._cut(name)) for name, shape in shapes.items()]
        starts = np.cumsum([0, *sizes]).tolist()
        room = np.empty(starts[-1], self.dtype)
        return {
            name: Panels.within(room[start:stop], shapes[name], self._cut(name))
            for name, start, stop in zip(names, starts, starts[1:], strict=False)
        }

    def _block(self, h: str, panels: Mapping[str, Panels], arrays: Mapping[str, Array]) -> Block:
        def bias(name: str) -> Array:
            return panels[f"{h}.{name}.bias"].data.reshape(-1)

        heads = panels[f"{h}.attn.c_attn.weight"].data
        return Block(
            ln_1=(arrays[f"{h}.ln_1.weight"], arrays[f"{h}.ln_1.bias"]),
            c_attn=heads.reshape(len(heads), 3, self._n_head, *heads.shape[2:]),
            c_attn_bias=bias("attn.c_attn").reshape(3, self._n_head, 1, -1),
            attn_c_proj=panels[f"{h}.attn.c_proj.weight"].data,
            attn_c_proj_bias=bias("attn.c_proj"),
            ln_2=(arrays[f"{h}.ln_2.weight"], arrays[f"{h}.ln_2.bias"]),
            c_fc=panels[f"{h}.mlp.c_fc.weight"].data,
            c_fc_bias=bias("mlp.c_fc"),
            mlp_c_proj=panels[f"{h}.mlp.c_proj.weight"].data,
            mlp_c_proj_bias=bias("mlp.c_proj"),
        )

    def _is_cut(self, name: str) -> bool:
        return _kind(name) in self._cuts

    def _cut(self, name: str) -> tuple[int, int]:
        return self._cuts[_kind(name)]

    def rows(self, name: str, numbers: NDArray[np.int64]) -> Array:
        """Some rows of an embedding or head (V, C) → (n, C), without a copy of all."""
        with self._lock:
            if name in self._arrays:
                return self._arrays[name][numbers]
            return self._panels[name].columns(numbers)

    def __getitem__(self, name: str) -> Array:
        with self._lock:
            if name in self._arrays:
                view = self._arrays[name].view()
                view.flags.writeable = False
                return view
            matrix = self._panels[name].array()
        return matrix.T if name in (WTE, LM_HEAD) else matrix.reshape(self._shapes[name])

    def __setitem__(self, name: str, array: Array) -> None:
        if np.shape(array) != self._shapes[name]:
            raise InvalidArgumentError(
                f"{name} has shape {np.shape(array)}, expected {self._shapes[name]}"
            )
        with self._lock:
            self.changes += 1
            if name in self._panels:
                self._panels[name].fill(_matrix(name, np.asarray(array)))
                return
            self._arrays[name] = np.array(array, self.dtype)
            if self._laid_out:
                self._laid_out = self._from_panels()

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
        """How many numbers they are."""
        return sum(map(math.prod, self._shapes.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of these numbers."""
        return self.parameters * self.dtype.itemsize


def _in_turn(
    embedded: Callable[[NDArray[np.int64]], Array],
    arrays: Mapping[str, Array],
    blocks: Iterable[Block],
    unembedding: Iterable[Array],
) -> InTurn:
    ln_f = arrays["ln_f.weight"], arrays["ln_f.bias"]
    return InTurn(embedded, arrays["wpe.weight"], blocks, ln_f, unembedding)


def _kind(name: str) -> str:
    return name.split(".", 2)[-1] if name.startswith("h.") else name


def _matrix(name: str, array: Array) -> Array:
    """A weight as it is cut: embeddings transposed, a bias as one row."""
    return array.T if name in (WTE, LM_HEAD) else np.atleast_2d(array)


def layout(config: GPT2Config) -> dict[str, tuple[int, int]]:
    """The inputs and outputs of a panel of each matrix, and of each bias, which is cut like one.

    A panel of c_attn makes one head's queries, keys or values. Inputs are cut in groups, which are
    added up: many would be too many for one small product of 16 rows, and a small product keeps one
    running sum for each number, whose rounding error grows with their count.
    """
    c, f = _inputs(config.n_embd), _inputs(config.n_inner)
    d = config.n_embd // config.n_head
    return {
        WTE: (c, _WIDTH),
        "attn.c_attn.weight": (c, d),
        "attn.c_attn.bias": (1, d),
        "attn.c_proj.weight": (c, _WIDTH),
        "attn.c_proj.bias": (1, _WIDTH),
        "mlp.c_fc.weight": (c, _WIDTH),
        "mlp.c_fc.bias": (1, _WIDTH),
        "mlp.c_proj.weight": (f, _WIDTH),
        "mlp.c_proj.bias": (1, _WIDTH),
        LM_HEAD: (c, _WIDTH),
    }


def _inputs(n: int) -> int:
    """How many of n inputs make one group: if possible, so many that no zeros follow the last."""
    groups = -(-n // _INPUTS)
    even = [i for i in range(groups, 2 * groups + 1) if n % i == 0]
    return n // even[0] if even else -(-n // groups)
