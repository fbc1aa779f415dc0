"""Traces: the recorded activations of a forward pass over a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import (
    InvalidArgumentError,
    check_argument,
    counted,
    is_integer,
)
from gpt2np.kernels.array import Array, IntArray, as_list
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.model import GPT2, GPT2Config
from gpt2np.model.hook_points import select_hook_points
from gpt2np.runtime.arguments import check_prompt_length, check_sequences
from gpt2np.runtime.context import Hook, as_chain


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Mapping[str, Array]):
    """A mapping from hook points to the activations of one forward pass over one sequence.

    Iteration yields the names of the hook points in the order of the pass. Threads can share a
    trace.
    """

    ids: IntArray  # (T,)
    config: GPT2Config
    arrays: Mapping[str, Array]  # see `gpt2np.model.hook_points.HOOK_POINTS`
    lm: LanguageModel | None = None
    """The model that was traced, for the picture in a notebook; not pickled."""

    draw: ClassVar[Callable[[Trace], str | None]] = lambda trace: None
    """Draws a trace. `gpt2np.interp.description`, which imports this module, sets it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, (self.ids, self.config, self.arrays)

    def __getitem__(self, name: str) -> Array:
        """Return the array of a hook point. Raises KeyError if the trace lacks the hook point."""
        if name not in self.arrays:
            raise KeyError(f"{name} is not in this trace; list(trace) has the names")
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return f"<Trace of {counted(len(self.ids), 'token')}: {counted(len(self), 'array')}>"

    def _repr_html_(self) -> str | None:
        """Return a picture of the pass for notebooks; None, unless a LanguageModel's is whole."""
        return Trace.draw(self)

    def require(self, points: str | Sequence[str]) -> list[str]:
        """Return the names of the hook points that `points` selects.

        Raises:
            InvalidArgumentError: a hook point does not exist, or the trace lacks it.
        """
        names = select_hook_points(points, self.config.n_layer)
        for name in names:
            if name not in self.arrays:
                raise InvalidArgumentError(
                    f"the trace lacks {name}; add it to the points of gpt2np.trace"
                )
        return names


def as_gpt2(model: GPT2 | LanguageModel) -> GPT2:
    """Return the GPT2 of a LanguageModel; return a GPT2 unchanged."""
    gpt2 = model.model if isinstance(model, LanguageModel) else model
    check_argument(isinstance(gpt2, GPT2), "model", model, "a GPT2 or a LanguageModel")
    return gpt2


def check_trace(trace: Trace) -> None:
    """Raise InvalidArgumentError if `trace` is no Trace."""
    check_argument(isinstance(trace, Trace), "trace", trace, "a Trace; gpt2np.trace returns one")


class _StopForward(Exception):
    """Raised by a hook to end the forward pass once all selected arrays are recorded."""


def trace(
    model: GPT2 | LanguageModel,
    prompt: Prompt | NDArray[np.integer[Any]],
    points: str | Sequence[str] = "*",
    *,
    interventions: Hook | Sequence[Hook] = (),
) -> Trace:
    """Run a prompt and record the arrays of the selected hook points, for all tokens.

    A text prompt needs a LanguageModel; a GPT2 takes token ids. In `points`, `*` matches
    any part of a name. `interventions` are hooks that edit the arrays, in order; the trace holds
    the edited arrays. The pass stops after the last selected hook point.

    Raises:
        InvalidArgumentError: a hook point does not exist, a token id is invalid, or the prompt is a
            text but `model` is a GPT2.
        ContextLengthError: the prompt has more tokens than the model's context.
    """
    gpt2 = as_gpt2(model)
    names = select_hook_points(points, gpt2.config.n_layer)
    edits = as_chain(interventions).for_layers(gpt2.config.n_layer)
    ids = prompt_ids(model, prompt)
    arrays: dict[str, Array] = {}

    def record(name: str, array: Array) -> Array:
        array = edits(name, array)
        if name in names:
            arrays[name] = np.array(array)
        if len(arrays) == len(names):
            raise _StopForward
        return array

    with suppress(_StopForward):
        gpt2.forward([ids], hook=record)
    lm = model if isinstance(model, LanguageModel) else None
    return Trace(np.array(ids, np.int64), gpt2.config, arrays, lm)


def prompt_ids(
    model: GPT2 | LanguageModel, prompt: Prompt | NDArray[np.integer[Any]]
) -> Sequence[int]:
    """Return the ids of a prompt that the model can run: a text, for a LanguageModel, or ids."""
    if isinstance(prompt, str):
        if not isinstance(model, LanguageModel):
            raise InvalidArgumentError("a GPT2 has no tokenizer; pass ids, or use a LanguageModel")
        prompt = model.encode_prompt(prompt)
    ids, config = as_list(prompt), as_gpt2(model).config
    is_list = ids is not None and all(map(is_integer, ids))
    check_argument(is_list, "prompt", prompt, "a text or a list of ids, one text at a time")
    check_sequences([ids or []], config.vocab_size)
    check_prompt_length(len(ids or []), config)
    return ids or []
