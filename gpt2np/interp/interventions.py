"""Interventions on a forward pass: ablation, scaling, steering, activation patching.

Each function except `chain` returns an `Intervention`. An intervention is a hook: pass the hook to
`gpt2np.trace` or to `GPT2.forward`, alone or in a `chain`.

    ablated = trace(lm, "The fox ran", "logits", interventions=zero_head(3, 2))["logits"]

By default, an intervention edits everything; keyword arguments select a part (`Part`). In
`gpt2np.trace` and `LanguageModel.generate`, position i is token i of the prompt. In `generate`, an
intervention with `positions` edits only the prompt. Without `positions`, it also edits each new
token. A pass of `GPT2.forward` may have several sequences in one array, or only a part of the
tokens (see `help(gpt2np.model.gpt2)`).

Zero and mean ablation: Wang et al. 2022. Activation patching: Meng et al. 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.interp.trace import Trace, check_trace, trace
from gpt2np.kernels.array import Array, IntArray
from gpt2np.language_model import LanguageModel
from gpt2np.model.hook_points import get_hook_point, matches, select_hook_points
from gpt2np.runtime.context import Chain, Hook, as_chain

if TYPE_CHECKING:
    from typing_extensions import Unpack

Indices = int | Sequence[int] | None
"""Positions, heads or channels: one, several, or None for all."""


class Part(TypedDict, total=False):
    """The part of an array that an intervention edits.

    Attributes:
        positions: tokens, or queries (rows) of a pattern; negative positions count from the end
            of the tokens that a pass reads. `score` does not read a text's last token.
        heads: heads of an array with a head axis.
        channels: entries of the last axis: channels, neurons, or keys (columns) of a pattern.
    """

    positions: Indices
    heads: Indices
    channels: Indices


@dataclass(frozen=True)
class Intervention:
    """A hook that replaces a part x of an array by x · factor + value.

    Attributes:
        points: names of hook points, in which `*` matches any characters.
        factor: factor of the selected part; also the derivative of the edit.
        value: what to add, by broadcasting: an array, or one array for each hook point.
        positions, heads, channels: see `Part`; None for all.
    """

    points: tuple[str, ...]
    factor: float = 0.0
    value: ArrayLike | Mapping[str, Array] = 0.0
    positions: Indices = None
    heads: Indices = None
    channels: Indices = None

    def for_layers(self, n_layer: int) -> Intervention:
        """Return a copy with every `*` in `points` expanded for a model with `n_layer` blocks.

        Raises:
            InvalidArgumentError: the model lacks a hook point, or `heads` are given for arrays
                without heads.
        """
        names = _expanded(self.points, n_layer)
        for name in names if self.heads is not None else ():
            if not get_hook_point(name).by_head:
                raise InvalidArgumentError(f"{name} has no heads; choose positions or channels")
        return dataclasses.replace(self, points=names)

    def _selects(self, name: str) -> bool:
        return matches(name, self.points)

    def for_rows(self, rows: IntArray, n: int) -> Hook:
        """Return the hook for arrays (R, C) of only some rows; `positions` count all n tokens."""
        if self.positions is None:
            return self

        def on_rows(name: str, array: Array) -> Array:
            if not self._selects(name):
                return array
            whole = np.zeros((n, array.shape[1]), array.dtype)
            whole[rows] = array
            return self(name, whole)[rows]

        return on_rows

    def after_prompt(self) -> Intervention | None:
        """Return the intervention for generated tokens: `self`, or None if `positions` are set."""
        return self if self.positions is None else None

    def __call__(self, name: str, array: Array) -> Array:
        """Return an edited copy of the array, or the array itself if no point matches `name`.

        Raises:
            InvalidArgumentError: a position, head or channel does not exist, or the value does not
                fit the part.
        """
        if not self._selects(name):
            return array
        index = self._index(name, array)
        edited, part = array.copy(), array[index]
        value = self.value[name] if isinstance(self.value, Mapping) else np.asarray(self.value)
        try:
            if self.factor == 0:
                edited[index] = value
            elif not value.any():  # -0.0 + 0.0 would be 0.0
                edited[index] = part * self.factor
            else:
                edited[index] = part * self.factor + value
        except ValueError as error:
            raise InvalidArgumentError(
                f"the value of shape {value.shape} does not fit {part.shape} at {name}"
            ) from error
        return edited

    def gradient(self, name: str, d: Array) -> Array:
        """Compute the gradient of the unedited array from `d`, the gradient of the edited array."""
        if self.factor == 1 or not self._selects(name):
            return d
        d = d.copy()
        d[self._index(name, d)] *= self.factor
        return d

    def _index(self, name: str, array: Array) -> tuple[Any, ...]:
        """Return the NumPy index of the part of an array (T, C) or (H, T, C)."""
        axes = [(self.positions, "position"), (self.channels, "channel")]
        if get_hook_point(name).by_head:
            axes = [(self.heads, "head"), *axes]
        parts = (
            _index_array(indices, size, name, kind)
            for (indices, kind), size in zip(axes, array.shape, strict=True)
        )
        return np.ix_(*parts)


@lru_cache(maxsize=256)
def _expanded(points: tuple[str, ...], n_layer: int) -> tuple[str, ...]:
    """Return the names of the hook points; generation asks for them in each pass."""
    return tuple(select_hook_points(points, n_layer))


def _index_array(indices: Indices, n: int, name: str, kind: str) -> IntArray:
    array = np.arange(n) if indices is None else np.atleast_1d(np.asarray(indices))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"{indices!r} is not a {kind} of {name}; expected an integer or a list of integers"
        )
    for index in array:
        if not -n <= index < n:
            raise InvalidArgumentError(f"{name} has no {kind} {index}; choose from 0 to {n - 1}")
    return array.astype(np.int64)


def chain(*hooks: Hook) -> Chain:
    """Join several hooks into one; each receives the array that the previous hook returned."""
    return as_chain(hooks)


def replace(points: str | Sequence[str], value: ArrayLike, **part: Unpack[Part]) -> Intervention:
    """Return a hook that sets the part to `value`, by broadcasting."""
    return Intervention(_as_tuple(points), 0.0, value, **part)


def scale(points: str | Sequence[str], factor: float, **part: Unpack[Part]) -> Intervention:
    """Return a hook that multiplies the part by `factor`."""
    check_argument(isinstance(factor, Real), "factor", factor, "a number")
    return Intervention(_as_tuple(points), float(factor), **part)


def add(points: str | Sequence[str], vector: ArrayLike, **part: Unpack[Part]) -> Intervention:
    """Return a hook that adds `vector` to the part, by broadcasting.

    A vector of zeros changes no bit.
    """
    vector = np.asarray(vector)
    is_finite = vector.dtype.kind in "iuf" and bool(np.isfinite(vector).all())
    check_argument(is_finite, "vector", vector, "an array of finite real numbers")
    return Intervention(_as_tuple(points), 1.0, vector, **part)


def zero(points: str | Sequence[str], **part: Unpack[Part]) -> Intervention:
    """Return a hook that sets the part to zero (zero ablation)."""
    return replace(points, 0.0, **part)


def zero_head(layer: int, head: int | Sequence[int], *, positions: Indices = None) -> Intervention:
    """Return a hook that sets the output `z` of one or several heads to zero (zero ablation).

    The bias of the output projection belongs to no head and is still added.
    """
    return zero(f"blocks.{layer}.attn.z", positions=positions, heads=head)


def mean_ablate(
    points: str | Sequence[str], over: Trace | Sequence[Trace], **part: Unpack[Part]
) -> Intervention:
    """Return a hook that replaces the part by its mean (mean ablation).

    The means are taken over all tokens of all traces in `over`.

    Raises:
        InvalidArgumentError: there are no traces, a trace lacks a hook point, or a hook point is an
            attention pattern, which has no mean over tokens.
    """
    traces = over if isinstance(over, Sequence) else [over]
    if not traces:
        raise InvalidArgumentError("mean_ablate needs at least one trace to average over")
    for traced in traces:
        check_trace(traced)
        names = traced.require(points)
    all_tokens = dataclasses.replace(Intervention((), **part), positions=None)
    means: dict[str, Array] = {}
    for name in names:
        if get_hook_point(name).shape == "H T T":
            raise InvalidArgumentError(f"{name} has no mean over tokens; ablate attn.z instead")
        tokens = np.concatenate([traced[name] for traced in traces], axis=-2)
        mean = tokens.mean(-2, keepdims=True)
        means[name] = mean[all_tokens._index(name, mean)]
    return Intervention(tuple(means), 0.0, means, **part)


def patch_from(
    source: Trace, points: str | Sequence[str] | None = None, **part: Unpack[Part]
) -> Intervention:
    """Return a hook that copies activations from another prompt's trace (activation patching).

    By default, all hook points of `source` are copied, from the same positions. To copy from other
    positions, use `replace` with a part of `source[point]`.

    Raises:
        InvalidArgumentError: the source lacks a hook point, a position, a head or a channel.
    """
    check_trace(source)
    names = list(source) if points is None else source.require(points)
    index = Intervention((), **part)._index
    patches = {name: source[name][index(name, source[name])] for name in names}
    return Intervention(tuple(names), 0.0, patches, **part)


def _as_tuple(points: str | Sequence[str]) -> tuple[str, ...]:
    names = (points,) if isinstance(points, str) else points
    is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    check_argument(is_list, "points", points, "a name of hook points or a list of names")
    return tuple(names)


@dataclass(frozen=True)
class Direction:
    """A vector to add to the activations at a hook point.

    Attributes:
        point: the name of the hook point.
        vector: (C,) or (F,); (H, 1, D) for arrays with heads. Float32.
    """

    point: str
    vector: Array

    def add(self, strength: float = 1.0, *, positions: Indices = None) -> Intervention:
        """Return a hook that adds `strength` times the vector; see `gpt2np.interp.add`."""
        check_argument(isinstance(strength, Real), "strength", strength, "a number")
        return add(self.point, float(strength) * self.vector, positions=positions)


def direction(
    lm: LanguageModel,
    texts_a: Sequence[str],
    texts_b: Sequence[str],
    point: str,
) -> Direction:
    """Return the direction from texts_b to texts_a at a hook point, for activation addition.

    Turner et al. 2023, arXiv:2308.10248.
    The direction is the mean of the activations at the last token of each text of `texts_a`, minus
    the same mean for `texts_b`.

    Raises:
        InvalidArgumentError: a list has no texts, the means of both lists are equal, or `point` is
            not the name of a hook point with vectors.
    """
    names = select_hook_points(point, lm.model.config.n_layer)
    is_single = len(names) == 1 and get_hook_point(names[0]).shape != "H T T"
    check_argument(is_single, "point", point, "the name of one hook point, no attention pattern")
    [name] = names

    def mean(argument: str, texts: Sequence[str]) -> Array:
        is_list = isinstance(texts, (list, tuple)) and len(texts) > 0
        check_argument(is_list, argument, texts, "a list of at least one text")
        arrays = [trace(lm, text, name)[name] for text in texts]
        last = np.stack([a[:, -1:] if get_hook_point(name).by_head else a[-1] for a in arrays])
        result: Array = last.mean(0, dtype=np.float64)
        return result

    difference = mean("texts_a", texts_a) - mean("texts_b", texts_b)
    if not difference.any():
        raise InvalidArgumentError(f"the mean of {name} is the same for texts_a and texts_b")
    return Direction(name, difference.astype(np.float32))
