"""One pass over a prompt with its inner arrays kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.interp.intervene import chain
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.model import GPT2, GPT2Config
from gpt2np.model.hooks import chosen_points, names_of
from gpt2np.runtime.batch import Hook

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Mapping[str, Array]):
    """Name → array, of one pass over one sequence, without a cache before it.

    `trace["blocks.3.attn.pattern"]` and `trace["blocks.3.attn.hook_pattern"]` are the same array.
    What is iterated over are the former names, in the order of the pass.

    Attributes:
        ids: (T,), the sequence.
        config: the model's.
        arrays: the points that were asked for, see `gpt2np.model.hooks.HOOK_POINTS`.
    """

    ids: NDArray[np.int64]
    config: GPT2Config
    arrays: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        """The array of a point. KeyError if there is none, or if it was not asked for."""
        if name in self.arrays:
            return self.arrays[name]
        for kept in self.arrays:
            if name in names_of(kept, self.config.n_layer):
                return self.arrays[kept]
        raise KeyError(f"{name} is not in this trace; gpt2np.trace(…, points=…) chooses")

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.ids)} tokens: {len(self)} arrays, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def held(self, points: str | Sequence[str]) -> list[str]:
        """The chosen points, all of which must be here.

        Raises:
            InvalidArgumentError: there is no such point, or it was not asked for.
        """
        names = chosen_points(points, self.config.n_layer)
        for name in names:
            if name not in self.arrays:
                raise InvalidArgumentError(f"the trace doesn't hold {name}; ask for it in points")
        return names

    def only(self, points: str | Sequence[str]) -> Trace:
        """The same with fewer arrays; errors as in `held`."""
        return Trace(self.ids, self.config, {name: self.arrays[name] for name in self.held(points)})

    def save(self, path: str | Path) -> None:
        """Write an .npz file: the ids as "ids", and every array under its name.

        Raises:
            OSError: it can't be written; a file that was there is as it was.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:  # a file, as NumPy would add .npz to a name
                arrays: dict[str, Any] = {"ids": self.ids, **self.arrays}
                np.savez(file, **arrays)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


class _Enough(Exception):
    """All points that were asked for have been seen."""


def trace(
    model: GPT2 | LanguageModel,
    prompt: Prompt | NDArray[np.integer[Any]],
    points: str | Sequence[str] = "*",
    *,
    interventions: Hook | Sequence[Hook] = (),
) -> Trace:
    """Run a prompt, and keep the arrays of the chosen points, of all its tokens.

    The pass ends when it has seen them all. What they take can be asked before:
    `points_nbytes(model.config, tokens, points, model.dtype)`.

    Args:
        model: a GPT2, or a LanguageModel, to which a text can be given.
        prompt: ids, or a text.
        points: names of points, also TransformerLens's, and with `*` for any part of a name.
        interventions: what changes arrays on the way, in turn; the trace has what came of it.

    Raises:
        InvalidArgumentError: there is no such point, also of an intervention; impossible ids; a
            text without a tokenizer.
        ContextLengthError: the prompt has more tokens than the model's context.
    """
    gpt2 = model.model if isinstance(model, LanguageModel) else model
    wanted = chosen_points(points, gpt2.config.n_layer)
    hooks = [interventions] if callable(interventions) else interventions
    change = chain(*hooks).for_layers(gpt2.config.n_layer)
    if not isinstance(prompt, str):
        ids = prompt
    elif isinstance(model, LanguageModel):
        ids = prompt_ids(model, prompt)
    else:
        raise InvalidArgumentError("a GPT2 has no tokenizer: give ids, or a LanguageModel")
    arrays = _arrays(gpt2, ids, wanted, change)
    return Trace(np.array(ids, np.int64), gpt2.config, arrays)


def _arrays(model: GPT2, ids: ArrayLike, wanted: Sequence[str], change: Hook) -> dict[str, Array]:
    kept: dict[str, Array] = {}

    def keep(name: str, array: Array) -> Array:
        array = change(name, array)
        if name in wanted:
            kept[name] = np.array(array)
        if len(kept) == len(wanted):
            raise _Enough
        return array

    with suppress(_Enough):
        model.forward([ids], hook=keep)
    return kept


def prompt_ids(lm: LanguageModel, prompt: str) -> list[int]:
    """The prompt's ids, as the engine takes it: plain text; an empty one begins a text.

    Raises:
        ContextLengthError: more ids than the model's context.
    """
    ids = lm.tokenizer.encode(prompt, disallowed_special=())
    if len(ids) > lm.model.config.n_positions:
        raise ContextLengthError(
            f"the prompt has {len(ids):,} tokens, more than the model's context of "
            f"{lm.model.config.n_positions:,}; give a shorter one"
        )
    return ids if ids or lm.bos_token_id is None else [lm.bos_token_id]
