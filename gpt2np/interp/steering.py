"""Steering: a direction between two kinds of texts, to add to activations while generating.

Activation addition (Turner et al. 2023, arXiv:2308.10248).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.interp.interventions import Indices, Intervention, add
from gpt2np.interp.trace import trace
from gpt2np.kernels.array import Array, equal_fields
from gpt2np.language_model import LanguageModel
from gpt2np.model.hook_points import get_hook_point, select_hook_points
from gpt2np.runtime.hooked_context import Hook


@dataclass(frozen=True)
class Direction:
    """A vector to add to the activations at a hook point.

    Attributes:
        point: the name of the hook point.
        vector: (C,) or (F,); (H, 1, D) for arrays with heads. Float32.
    """

    point: str
    vector: Array

    __eq__ = equal_fields

    def add(self, strength: float = 1.0, *, positions: Indices = None) -> Intervention:
        """Return a hook that adds `strength` times the vector; see `gpt2np.interp.add`."""
        check_argument(isinstance(strength, Real), "strength", strength, "a number")
        return add(self.point, float(strength) * self.vector, positions=positions)


def direction(
    lm: LanguageModel,
    texts_a: Sequence[str],
    texts_b: Sequence[str],
    point: str,
    *,
    interventions: Hook | Sequence[Hook] = (),
) -> Direction:
    """Return the direction from texts_b to texts_a at a hook point.

    The direction is the mean of the activations at the last token of each text of `texts_a`, minus
    the same mean for `texts_b`. `interventions` are as in `trace`.

    Raises:
        InvalidArgumentError: a list has no texts, the means of both lists are equal, or `point` is
            not the name of a hook point with vectors.
    """
    names = select_hook_points(point, lm.model.config.n_layer)
    is_single = len(names) == 1 and not names[0].endswith("pattern")
    check_argument(is_single, "point", point, "the name of one hook point, no attention pattern")

    def mean(name: str, texts: Sequence[str]) -> Array:
        is_list = isinstance(texts, (list, tuple)) and len(texts) > 0
        check_argument(is_list, name, texts, "a list of at least one text")
        by_head = get_hook_point(names[0]).by_head
        traces = [trace(lm, text, names[0], interventions=interventions) for text in texts]
        arrays = [traced[names[0]] for traced in traces]
        last = np.stack([a[:, -1:] if by_head else a[-1] for a in arrays])
        result: Array = last.mean(0, dtype=np.float64)
        return result

    difference = mean("texts_a", texts_a) - mean("texts_b", texts_b)
    if not difference.any():
        raise InvalidArgumentError(f"the mean of {names[0]} is the same for texts_a and texts_b")
    return Direction(names[0], difference.astype(np.float32))
