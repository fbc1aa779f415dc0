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
) -> Direction:
    """Return the direction from texts_b to texts_a at a hook point.

    The direction is the mean of the activations at the last token of each text of `texts_a`, minus
    the same mean for `texts_b`.

    Raises:
        InvalidArgumentError: a list has no texts, the means of both lists are equal, or `point` is
            not the name of a hook point with vectors.
    """
    names = select_hook_points(point, lm.model.config.n_layer)
    is_single = len(names) == 1 and not names[0].endswith("pattern")
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
