"""Interventions on a forward pass: ablation, scaling, steering, activation patching.

Each function except `chain` returns an `Intervention`. An intervention is a hook: pass the hook to
`gpt2np.trace` or to `GPT2.forward`, alone or in a `chain`.

    from gpt2np.interp import patch_from, trace, zero_head

    ablated = trace(lm, "The fox ran", "logits", interventions=zero_head(3, 2))["logits"]

    source = trace(lm, "The dog ran")
    patched = trace(lm, "The fox ran", "logits", interventions=patch_from(source, "blocks.2.resid"))

`positions` selects tokens, or queries (rows) in an attention pattern. Negative positions
count from the end. `heads` selects heads. By default, all positions and heads are edited.

In `gpt2np.trace` and `LanguageModel.generate`, position i is token i of the prompt. In `generate`,
an intervention with `positions` edits only prompt tokens; an intervention without `positions` also
edits each generated token. Passes of `GPT2.forward` can hold the tokens of several sequences
in one array, or only a part of the tokens (see `help(gpt2np.model.gpt2)`).

Zero and mean ablation: Wang et al. 2022. Activation patching: Meng et al. 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.interp.trace import Trace, check_trace
from gpt2np.kernels.array import Array, IntArray
from gpt2np.model.hook_points import (
    candidate_hook_points,
    get_hook_point,
    matches,
    select_hook_points,
)
from gpt2np.runtime.hooked_context import Chain, Hook

Indices = int | Sequence[int] | None
"""Positions or heads: one, several, or None for all."""


@dataclass(frozen=True)
class Intervention:
    """A hook that edits selected positions and heads of selected hook points.

    `points` are names of hook points, in which `*` matches any characters. `edit(name, part)`
    receives the selected positions and heads of an array: (positions, …), or (heads, positions, …)
    for arrays with a head axis. `edit` returns values that broadcast to the same shape. `slope` is
    the derivative of the edit: 0 for values that do not depend on the part, 1 for added values,
    None if unknown. Gradients cannot pass through an edit with an unknown slope.
    """

    points: tuple[str, ...]
    edit: Callable[[str, Array], ArrayLike]
    positions: Indices = None
    heads: Indices = None
    slope: float | None = None
    # The points once `for_layers` has expanded them. A copy with other points does not have it.
    _names: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in (name for point in self.points for name in candidate_hook_points(point)):
            if self.heads is not None and not get_hook_point(name).by_head:
                raise InvalidArgumentError(f"{name} has no heads; choose positions only")

    def for_layers(self, n_layer: int) -> Intervention:
        """Return a copy with every `*` in `points` expanded for a model with `n_layer` blocks.

        Raises:
            InvalidArgumentError: the model lacks a hook point.
        """
        if self._names is not None:
            return self
        expanded = dataclasses.replace(self, points=tuple(select_hook_points(self.points, n_layer)))
        object.__setattr__(expanded, "_names", frozenset(expanded.points))
        return expanded

    def _selects(self, name: str) -> bool:
        if self._names is not None:
            return name in self._names
        return any(matches(name, point) for point in self.points)

    def after_prompt(self) -> Intervention | None:
        """Return the intervention for generated tokens: `self`, or None if `positions` are set."""
        return self if self.positions is None else None

    def __call__(self, name: str, array: Array) -> Array:
        """Return an edited copy of the array, or the array itself if no point matches `name`."""
        if not self._selects(name):
            return array
        index = _part_index(name, array, self.positions, self.heads)
        edited = array.copy()
        value = np.asarray(self.edit(name, array[index]))
        try:
            edited[index] = value
        except ValueError as error:
            raise InvalidArgumentError(
                f"the new value for {name} has shape {value.shape}, which does not broadcast to "
                f"{array[index].shape}"
            ) from error
        return edited

    def gradient(self, name: str, d: Array) -> Array:
        """Compute the gradient of the unedited array from `d`, the gradient of the edited array.

        Raises:
            InvalidArgumentError: the edit's `slope` is unknown.
        """
        if self.slope == 1 or not self._selects(name):
            return d
        if self.slope is None:
            raise InvalidArgumentError(f"the edit of {name} has no slope; set Intervention.slope")
        d = d.copy()
        d[_part_index(name, d, self.positions, self.heads)] *= self.slope
        return d


def _part_index(name: str, array: Array, positions: Indices, heads: Indices) -> tuple[Any, ...]:
    """Return the NumPy index of the selected positions and heads of an array."""
    if not get_hook_point(name).by_head:
        return (_index_array(positions, len(array), name, "position"),)
    rows = _index_array(heads, len(array), name, "head")
    return np.ix_(rows, _index_array(positions, array.shape[1], name, "position"))


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
    for hook in hooks:
        check_argument(callable(hook), "hook", hook, "a function hook(name, array)")
    return Chain(hooks)


def replace(
    points: str | Sequence[str],
    value: ArrayLike,
    *,
    positions: Indices = None,
    heads: Indices = None,
) -> Intervention:
    """Return a hook that sets the selected positions and heads to `value`, by broadcasting."""
    return Intervention(_as_tuple(points), partial(_constant, value), positions, heads, slope=0)


def scale(
    points: str | Sequence[str], factor: float, *, positions: Indices = None, heads: Indices = None
) -> Intervention:
    """Return a hook that multiplies the selected positions and heads by `factor`."""
    check_argument(isinstance(factor, Real), "factor", factor, "a number")
    return Intervention(
        _as_tuple(points), partial(_scaled, factor), positions, heads, slope=float(factor)
    )


def add(
    points: str | Sequence[str],
    vector: ArrayLike,
    *,
    positions: Indices = None,
    heads: Indices = None,
) -> Intervention:
    """Return a hook that adds `vector` to the selected positions and heads, by broadcasting.

    With a `direction` times a strength, this is activation addition (Turner et al. 2023,
    arXiv:2308.10248). A vector of zeros changes no bit.
    """
    vector = np.asarray(vector)
    is_finite = vector.dtype.kind in "iuf" and bool(np.isfinite(vector).all())
    check_argument(is_finite, "vector", vector, "an array of finite real numbers")
    return Intervention(_as_tuple(points), partial(_sum, vector), positions, heads, slope=1.0)


def zero(
    points: str | Sequence[str], *, positions: Indices = None, heads: Indices = None
) -> Intervention:
    """Return a hook that sets the selected positions and heads to zero (zero ablation)."""
    return replace(points, 0.0, positions=positions, heads=heads)


def zero_head(layer: int, head: int | Sequence[int], *, positions: Indices = None) -> Intervention:
    """Return a hook that sets the output `z` of one or several heads to zero (zero ablation).

    The bias of the output projection belongs to no head and is still added.
    """
    return zero(f"blocks.{layer}.attn.z", positions=positions, heads=head)


def mean_ablate(
    points: str | Sequence[str],
    over: Trace | Sequence[Trace],
    *,
    positions: Indices = None,
    heads: Indices = None,
) -> Intervention:
    """Return a hook that replaces the selected positions and heads by means (mean ablation).

    The means are taken over all tokens of all traces in `over`.

    Raises:
        InvalidArgumentError: there are no traces, a trace lacks a hook point, or a hook point is an
            attention pattern, which has no mean over tokens.
    """
    traces = over if isinstance(over, Sequence) else [over]
    if not traces:
        raise InvalidArgumentError("mean_ablate needs at least one trace to average over")
    for trace in traces:
        check_trace(trace)
    means: dict[str, Array] = {}
    for name in dict.fromkeys(name for trace in traces for name in trace.require(points)):
        if name.endswith("pattern"):
            raise InvalidArgumentError(f"{name} has no mean over tokens; ablate attn.z instead")
        axis = 1 if get_hook_point(name).by_head else 0
        tokens = np.concatenate([trace[name] for trace in traces], axis)
        means[name] = tokens.mean(axis, keepdims=True)
    return Intervention(tuple(means), partial(_mean, means, heads), positions, heads, slope=0)


def patch_from(
    source: Trace,
    points: str | Sequence[str] | None = None,
    *,
    positions: Indices = None,
    heads: Indices = None,
    source_positions: Indices = None,
) -> Intervention:
    """Return a hook that copies activations from another prompt's trace (activation patching).

    By default, all hook points of `source` are copied. `source_positions` are the positions to
    read in `source` (default: `positions`); give the same number of positions in both arguments.

    Raises:
        InvalidArgumentError: the source lacks a hook point.
    """
    check_trace(source)
    names = list(source) if points is None else source.require(points)
    from_positions = positions if source_positions is None else source_positions
    edit = partial(_patch, source, from_positions, heads)
    return Intervention(tuple(names), edit, positions, heads, slope=0)


# The edits are functions of this module, not closures, so that interventions can be pickled.


def _constant(value: ArrayLike, name: str, part: Array) -> ArrayLike:
    return value


def _scaled(factor: float, name: str, part: Array) -> ArrayLike:
    return part * factor


def _sum(vector: Array, name: str, part: Array) -> ArrayLike:
    try:
        return np.where(vector == 0, part, part + vector)  # -0.0 + 0.0 would be 0.0
    except ValueError as error:
        raise InvalidArgumentError(
            f"the vector of shape {vector.shape} does not fit {part.shape} at {name}"
        ) from error


def _mean(means: Mapping[str, Array], heads: Indices, name: str, part: Array) -> ArrayLike:
    mean = means[name]
    if get_hook_point(name).by_head:
        mean = mean[_index_array(heads, len(mean), name, "head")]
    return mean


def _patch(source: Trace, positions: Indices, heads: Indices, name: str, part: Array) -> ArrayLike:
    array = source[name]
    patch: Array = array[_part_index(name, array, positions, heads)]
    if patch.shape != part.shape:
        raise InvalidArgumentError(
            f"the source's {patch.shape} does not fit {part.shape} at {name}; "
            "choose positions and source_positions"
        )
    return patch


def _as_tuple(points: str | Sequence[str]) -> tuple[str, ...]:
    names = (points,) if isinstance(points, str) else points
    is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    check_argument(is_list, "points", points, "a name of hook points or a list of names")
    return tuple(names)
