"""Forward pass over a prompt, and the focus of the page: a layer, a head and a position.

Shape letters: N tokens of the window, C channels, H heads, D head size, T keys, F MLP width,
V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2np.errors import ContextLengthError, InvalidArgumentError, counted, is_integer
from gpt2np.generation.logits_processors import check_finite
from gpt2np.interp import Trace, trace
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.model import GPT2, GPT2Config

MAX_TOKENS = 64
"""Maximum tokens per page: with more, patterns would be too small and files too large."""


@dataclass(frozen=True)
class Focus:
    """What the page shows first: a block, a token, and a head alone or all of them."""

    layer: int
    head: int | None
    position: int


@dataclass(frozen=True)
class Run:
    """A forward pass over a prompt, with the activations at every hook point."""

    lm: LanguageModel
    prompt: str  # if ids were given, their text
    all_ids: list[int]  # an empty prompt becomes the BOS token
    is_encoding: bool  # whether `all_ids` are the encoding of `prompt`
    window: slice  # the part of `all_ids` that the model processes and the page shows
    arrays: Trace  # of all hook points
    focus: Focus

    @property
    def ids(self) -> list[int]:
        """Ids of the tokens that the page shows, (N,)."""
        return self.all_ids[self.window]

    @property
    def model(self) -> GPT2:
        """The GPT2 of the language model `lm`."""
        return self.lm.model

    @property
    def config(self) -> GPT2Config:
        return self.lm.model.config

    def residual(self, layer: int) -> Array:
        """Return the residual stream (N, C) before block `layer`; for L, after the last block."""
        return self.arrays[f"blocks.{layer - 1}.resid" if layer else "embed"]


def run_prompt(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    window: slice | None = None,
    layer: int | None = None,
    head: int | None = None,
    position: int | None = None,
) -> Run:
    """Run the model on a prompt, or on a window of its tokens, and keep all activations.

    The page shows a block and a token in detail, by default the middle block and the last token.
    It shows the arcs of all heads, or only those of `head`.

    Raises:
        ContextLengthError: the prompt has too many tokens for a page or for the model.
        InvalidArgumentError: the window, layer, head or position is out of range.
        CheckpointError: some logits are infinite or NaN.
    """
    text = prompt if isinstance(prompt, str) else lm.tokenizer.decode(prompt)
    encoded = lm.encode_prompt(text)
    ids = encoded if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise InvalidArgumentError("the prompt is empty; give a text of at least one token")
    window = _resolve_window(ids, window, lm.model.config)
    with np.errstate(all="ignore"):  # check_finite raises an error instead
        arrays = trace(lm.model, ids[window])
    check_finite(arrays["logits"], lm.model)
    config, n = lm.model.config, len(ids[window])
    focus = Focus(
        _resolve_index("layer", layer, config.n_layer, default=config.n_layer // 2),
        None if head is None else _resolve_index("head", head, config.n_head),
        _resolve_index("position", position, n, default=n - 1),
    )
    return Run(lm, text, ids, ids == encoded, window, arrays, focus)


def _resolve_window(ids: list[int], window: slice | None, config: GPT2Config) -> slice:
    n, limit = len(ids), min(MAX_TOKENS, config.n_positions)
    bounds = window or slice(None)
    start, stop = bounds.start or 0, n if bounds.stop is None else bounds.stop
    if not (is_integer(start) and is_integer(stop)) or bounds.step not in (None, 1):
        raise InvalidArgumentError(
            "{window} is {0}; it must be START and STOP, two integers", bounds, window=window
        )
    if not 0 <= start < stop <= n:
        raise InvalidArgumentError(
            f"the window {start}:{stop} is not within the prompt's {counted(n, 'token')}; "
            f"choose START:STOP with 0 ≤ START < STOP ≤ {n}"
        )
    if stop - start > limit:
        size = (
            f"the prompt has {counted(n, 'token')}"
            if window is None
            else f"the window has {stop - start}"
        )
        raise ContextLengthError(
            f"{size}, and a page holds at most {limit}; select a part, for example with "
            f"{{window.setting}} for the last {limit}",
            window=slice(max(0, n - limit), n),
        )
    return slice(start, stop)


def _resolve_index(name: str, value: int | None, count: int, default: int = 0) -> int:
    if value is None:
        return default
    if not is_integer(value) or not 0 <= value < count:
        raise InvalidArgumentError(f"there is no {name} {value}; choose from 0 to {count - 1}")
    return int(value)
