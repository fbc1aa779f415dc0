"""Changes to the arrays inside a forward pass: ablation, scaling, activation patching.

Each function here gives an `Intervention`, which is a hook: it can be given to `gpt2np.trace` or
to `GPT2.forward`, alone or with others in a `chain`.

    from gpt2np.interp import patch_from, trace, zero_head

    without = trace(lm, "The fox ran", "logits", interventions=zero_head(3, 2))["logits"]

    other = trace(lm, "The dog ran")
    patched = trace(lm, "The fox ran", "logits", interventions=patch_from(other, "blocks.2.resid"))

Positions count the tokens that an array holds from 0, from the end if negative; for a pattern they
are those that look (its rows). Without positions or heads all are meant. In a trace they are the
tokens of its one sequence, and so they are in `GPT2.forward` with one sequence, without `rows` and
without a cache; in its other passes some arrays hold the tokens of several sequences, or new or
chosen ones only (`help(gpt2np.model.gpt2)`).

The terms are those of Wang et al. 2022 (zero and mean ablation), and Meng et al. 2022 (patching).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.model.hooks import chosen_points, matches, point_of, possible_points
from gpt2np.runtime.batch import Hook, hook_for

if TYPE_CHECKING:
    from gpt2np.interp.trace import Trace

Array = NDArray[Any]
Choice = int | Sequence[int] | None
"""Positions or heads: one, several, or None for all."""


@dataclass(frozen=True)
class Intervention:
    """A hook that changes chosen positions and heads of chosen points.

    Attributes:
        points: names of points, with `*` for any part of a name.
        edit: edit(name, part) → what takes the part's place, of its shape or broadcast to it. The
            part is (positions, …) or, for points with heads, (heads, positions, …).
        positions: of the tokens.
        heads: for points that have them.
    """

    points: tuple[str, ...]
    edit: Callable[[str, Array], ArrayLike]
    positions: Choice = None
    heads: Choice = None

    def __post_init__(self) -> None:
        for name in (name for point in self.points for name in possible_points(point)):
            if self.heads is not None and not point_of(name).by_head:
                raise InvalidArgumentError(f"{name} has no heads; choose positions only")

    def for_layers(self, n_layer: int) -> Intervention:
        """The same for a model with so many blocks. InvalidArgumentError if it lacks the points."""
        return dataclasses.replace(self, points=tuple(chosen_points(self.points, n_layer)))

    def __call__(self, name: str, array: Array) -> Array:
        """The array, or a changed copy of it."""
        if not any(matches(name, point) for point in self.points):
            return array
        part = _part(name, array, self.positions, self.heads)
        changed = array.copy()
        value = np.asarray(self.edit(name, array[part]))
        try:
            changed[part] = value
        except ValueError as error:
            raise InvalidArgumentError(
                f"{value.shape} can't take the place of {array[part].shape} at {name}"
            ) from error
        return changed


def _part(name: str, array: Array, positions: Choice, heads: Choice) -> tuple[Any, ...]:
    """The index of the chosen part."""
    if not point_of(name).by_head:
        return (_numbers(positions, len(array), f"position of {name}"),)
    first = _numbers(heads, len(array), f"head of {name}")
    second = _numbers(positions, array.shape[1], f"position of {name}")
    return np.ix_(first, second)


def _numbers(choice: Choice, n: int, what: str) -> NDArray[np.int64]:
    numbers = np.arange(n) if choice is None else np.atleast_1d(np.asarray(choice))
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"{choice!r} is no {what}: give a whole number, or a list")
    for number in numbers:
        if not -n <= number < n:
            raise InvalidArgumentError(f"there is no {what} {number}; they are 0 … {n - 1}")
    return numbers.astype(np.int64)


@dataclass(frozen=True)
class Chain:
    """One hook that is several, see `chain`."""

    hooks: tuple[Hook, ...]

    def for_layers(self, n_layer: int) -> Chain:
        """The same for a model with so many blocks. InvalidArgumentError if it lacks a point."""
        return Chain(tuple(hook_for(hook, n_layer) for hook in self.hooks))

    def __call__(self, name: str, array: Array) -> Array:
        """What the last of them makes of the array."""
        for hook in self.hooks:
            array = hook(name, array)
        return array


def chain(*hooks: Hook) -> Chain:
    """One hook that is several, each given what the one before it returned."""
    return Chain(hooks)


def replace(
    points: str | Sequence[str],
    value: ArrayLike,
    *,
    positions: Choice = None,
    heads: Choice = None,
) -> Intervention:
    """Put `value`, of the part's shape or broadcast to it, in the place of the chosen part."""
    return Intervention(_several(points), lambda name, part: value, positions, heads)


def scale(
    points: str | Sequence[str],
    factor: float,
    *,
    positions: Choice = None,
    heads: Choice = None,
) -> Intervention:
    """Multiply the chosen part by `factor`."""
    return Intervention(_several(points), lambda name, part: part * factor, positions, heads)


def zero(
    points: str | Sequence[str], *, positions: Choice = None, heads: Choice = None
) -> Intervention:
    """Zero ablation: put zeros in the place of the chosen part."""
    return replace(points, 0.0, positions=positions, heads=heads)


def zero_head(layer: int, head: int | Sequence[int], *, positions: Choice = None) -> Intervention:
    """Zero ablation of a head, or of several of one block: nothing of what it mixed is passed on.

    The bias of the block's c_proj, which belongs to no head, is still added.
    """
    return zero(f"blocks.{layer}.attn.z", positions=positions, heads=head)


def mean_ablate(
    points: str | Sequence[str],
    over: Trace | Sequence[Trace],
    *,
    positions: Choice = None,
    heads: Choice = None,
) -> Intervention:
    """Mean ablation: put the mean over all tokens of other traces in the place of the chosen part.

    Raises:
        InvalidArgumentError: no trace, or one that doesn't hold the points; a pattern, whose
            columns differ in meaning from row to row.
    """
    traces = over if isinstance(over, Sequence) else [over]
    if not traces:
        raise InvalidArgumentError("there is no mean over no traces; give at least one")
    means: dict[str, Array] = {}
    for name in dict.fromkeys(name for trace in traces for name in trace.held(points)):
        if name.endswith("pattern"):
            raise InvalidArgumentError(f"{name} has no mean over tokens; ablate attn.z instead")
        axis = 1 if point_of(name).by_head else 0
        together = np.concatenate([trace[name] for trace in traces], axis)
        means[name] = together.mean(axis, keepdims=True)

    def edit(name: str, part: Array) -> ArrayLike:
        mean = means[name]
        if point_of(name).by_head:
            mean = mean[_numbers(heads, len(mean), f"head of {name}")]
        return mean

    return Intervention(tuple(means), edit, positions, heads)


def patch_from(
    source: Trace,
    points: str | Sequence[str] | None = None,
    *,
    positions: Choice = None,
    heads: Choice = None,
    source_positions: Choice = None,
) -> Intervention:
    """Activation patching: put what another prompt's trace holds in the place of the chosen part.

    Args:
        source: the other prompt's trace.
        points: by default all that it holds.
        positions: in the prompt that is patched.
        heads: the same in both.
        source_positions: as many in the other prompt; by default the same.

    Raises:
        InvalidArgumentError: the trace doesn't hold the points.
    """
    names = list(source) if points is None else source.held(points)
    where = positions if source_positions is None else source_positions

    def edit(name: str, part: Array) -> ArrayLike:
        array = source[name]
        taken: Array = array[_part(name, array, where, heads)]
        if taken.shape != part.shape:
            raise InvalidArgumentError(
                f"{taken.shape} of the source can't take the place of {part.shape} at {name}; "
                "choose positions and source_positions"
            )
        return taken

    return Intervention(tuple(names), edit, positions, heads)


def _several(points: str | Sequence[str]) -> tuple[str, ...]:
    return (points,) if isinstance(points, str) else tuple(points)
