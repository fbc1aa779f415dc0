"""One forward pass of a prompt with everything kept, and what the reader is to look at.

Shape letters: N tokens of the window, C channels, H heads, D head size, T tokens seen, F MLP width,
V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import CheckpointError, ContextLengthError, InvalidArgumentError
from gpt2np.interp import trace
from gpt2np.interp.summary import token_bytes
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2, GPT2Config

Array = NDArray[Any]

MOST_TOKENS = 64
"""Of one page: beyond it the attention patterns are too small to see, and the file too large."""


@dataclass(frozen=True)
class Focus:
    """What is opened on the page.

    Attributes:
        layer: the block that is opened.
        head: of its heads, the one whose query, key and value are shown.
        position: the token that is followed through the block.
        key: the token that the head looks at from there.
    """

    layer: int
    head: int
    position: int
    key: int


@dataclass(frozen=True)
class Run:
    """A prompt's way through the model.

    Attributes:
        lm: the model and its tokenizer.
        prompt: the whole prompt.
        all_ids: its ids, or the one that an empty prompt stands for.
        window: which of them the page is about; to the model they are the whole text.
        arrays: every point of the forward pass by its name, see `gpt2np.model.hooks`.
        focus: what is opened.
    """

    lm: LanguageModel
    prompt: str
    all_ids: list[int]
    window: slice
    arrays: Mapping[str, Array]
    focus: Focus

    @property
    def ids(self) -> list[int]:
        """The ids that the page is about, (N,)."""
        return self.all_ids[self.window]

    @property
    def model(self) -> GPT2:
        """The model."""
        return self.lm.model

    @property
    def config(self) -> GPT2Config:
        """The model's shape."""
        return self.lm.model.config

    def bytes_of(self, number: int) -> bytes:
        """A token's bytes; a row of the model that no token has is named by its number."""
        return token_bytes([number], self.lm.tokenizer.vocabulary.token_bytes)[0]

    def residual(self, layer: int) -> Array:
        """The residual stream (N, C) that goes into block `layer`; that after the last is L."""
        return self.arrays[f"blocks.{layer - 1}.resid" if layer else "embed"]


def run_prompt(
    lm: LanguageModel,
    prompt: str,
    *,
    window: slice | None = None,
    layer: int | None = None,
    head: int | None = None,
    position: int | None = None,
) -> Run:
    """The prompt, or a window of its tokens, through the model, with every inner array kept.

    What is not chosen is: the block in the middle, the last token, and the head that looks there
    most at one other token than the first, which many heads look at when they have nothing to do.

    Raises:
        ContextLengthError: more tokens than a page or the model's context can hold.
        InvalidArgumentError: a window, layer, head or position that there is not.
        CheckpointError: the logits are infinite or not numbers.
    """
    ids = lm.tokenizer.encode(prompt, disallowed_special=())
    if not ids and lm.bos_token_id is not None:
        ids = [lm.bos_token_id]
    if not ids:
        raise InvalidArgumentError("the prompt is empty; give a text of at least one token")
    chosen = _checked_window(ids, window, lm.model.config)
    with np.errstate(over="ignore", invalid="ignore"):  # it is told below, by name
        arrays = trace(lm.model, ids[chosen])
    if not np.isfinite(arrays["logits"]).all():
        raise CheckpointError("the model's logits are not numbers: its weights are damaged")
    focus = _focus(lm.model.config, arrays, layer, head, position)
    return Run(lm, prompt, ids, chosen, arrays, focus)


def _checked_window(ids: list[int], window: slice | None, config: GPT2Config) -> slice:
    n, most = len(ids), min(MOST_TOKENS, config.n_positions)
    given = window or slice(None)
    start, stop = given.start or 0, n if given.stop is None else given.stop
    if not (is_whole(start) and is_whole(stop)) or given.step not in (None, 1):
        raise InvalidArgumentError(
            f"the window is {given}; it must be slice(START, STOP), two whole numbers"
        )
    if not 0 <= start < stop <= n:
        raise InvalidArgumentError(
            f"the window {start}:{stop} is not within the prompt's {n} tokens; "
            f"choose START:STOP with 0 ≤ START < STOP ≤ {n}"
        )
    if stop - start > most:
        whole = f"the prompt has {n} tokens" if window is None else f"the window has {stop - start}"
        raise ContextLengthError(
            f"{whole}, and a page holds at most {most}; choose some of them with --window "
            f"START:STOP, for example --window {max(0, n - most)}:{n} for the last"
        )
    return slice(start, stop)


def _focus(
    config: GPT2Config,
    arrays: Mapping[str, Array],
    layer: int | None,
    head: int | None,
    position: int | None,
) -> Focus:
    n = len(arrays["embed"])
    layer = _checked("layer", layer, config.n_layer, default=config.n_layer // 2)
    position = _checked("position", position, n, default=n - 1)
    rows = arrays[f"blocks.{layer}.attn.pattern"][:, position]  # (H, T)
    others = rows[:, 1:position] if position > 1 else rows[:, : position + 1]
    strongest = int(others.max(axis=1).argmax())
    head = _checked("head", head, config.n_head, default=strongest)
    key = int(others[head].argmax()) + (1 if position > 1 else 0)
    return Focus(layer, head, position, key)


def _checked(name: str, value: int | None, count: int, default: int) -> int:
    if value is None:
        return default
    if not is_whole(value) or not 0 <= value < count:
        raise InvalidArgumentError(f"there is no {name} {value}; choose from 0 to {count - 1}")
    return int(value)


def is_whole(value: object) -> bool:
    """Whether it is an integer, of Python or of NumPy, and so can count or name a place."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
