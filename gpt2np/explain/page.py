"""The page: the description of a pass, with more fields, in the front end of `gpt2np.view`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.display import frame
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.explain import details
from gpt2np.explain.details import OnProgress
from gpt2np.explain.run import Run, run_prompt
from gpt2np.interp.description import PARTS, describe_pass, describe_texts
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.tokenizer.display import escape_token
from gpt2np.tokenizer.vocabulary import token_bytes
from gpt2np.view import machine_page

_SEED = 0  # of the draw that the Machine shows
_PARTS = (*PARTS, "guesses")

PROGRESS_STEPS = len(details.PARTS) + 2  # the forward pass, the parts and the page
"""Number of times that `explain` calls `on_progress`."""


@dataclass(frozen=True, repr=False)
class Page:
    """HTML of a page, the description in it, and the forward pass over the prompt."""

    html: str
    description: dict[str, Any]
    run: Run

    def __repr__(self) -> str:
        return f"<Page about {_short_prompt(self.run, 40)!r}: {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return frame(self.html)


def explain(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    window: slice | None = None,
    layer: int | None = None,
    head: int | None = None,
    position: int | None = None,
    steps: int = 8,
    float64: bool = True,
    on_progress: OnProgress = lambda part: None,
) -> Page:
    """Create a page that shows how the model processes a prompt (see `gpt2np explain --help`).

    The prompt is a text or token ids. The model must be in float32. `window` selects tokens of the
    prompt (default: all); at most `gpt2np.explain.run.MAX_TOKENS` tokens are allowed. `layer`,
    `head` and `position` (in the window) select the details to show; `run_prompt` explains the
    defaults. `steps` is the maximum number of tokens to generate. `float64` adds a comparison with
    a float64 copy of the model. `on_progress` receives the name of each part of the page before the
    part is computed.

    Raises:
        ContextLengthError: the prompt has too many tokens for a page or for the model.
        InvalidArgumentError: the window, layer, head or position is out of range, `steps` is not
            positive, or the model is not in float32.
        CheckpointError: some logits are infinite or NaN.
    """
    check_argument(isinstance(lm, LanguageModel), "lm", lm, "a LanguageModel")
    if lm.model.dtype != np.float32:
        raise InvalidArgumentError("the page needs a float32 model; load the model with that dtype")
    check_argument(is_integer(steps) and steps >= 1, "steps", steps, "an integer of at least 1")
    on_progress("forward pass")
    run = run_prompt(lm, prompt, window=window, layer=layer, head=head, position=position)
    further = details.describe_details(run, steps, float64, on_progress)
    on_progress("page")
    described = describe_pass(lm, run.arrays, include=_PARTS, n_lines=len(run.ids), seed=_SEED)
    described |= {"points": details.describe_points(run), "details": further}
    described["texts"] |= describe_texts(lm, details.named_ids(further))
    title = f"What happens to “{_short_prompt(run, 60)}”"
    return Page(machine_page(described, title), described, run)


def _short_prompt(run: Run, max_length: int) -> str:
    """Shorten the prompt to one line; for a blank prompt, show the tokens with visible symbols."""
    text = run.lm.tokenizer.decode(run.ids)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    table = run.lm.tokenizer.vocabulary.token_bytes
    line = line or "".join(map(escape_token, token_bytes(run.ids, table))).replace(" ", "␣")
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"
