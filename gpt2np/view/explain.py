"""The page of a prompt: one HTML file with the picture of a pass and of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2np.display import frame
from gpt2np.errors import ContextLengthError, InvalidArgumentError, check_argument
from gpt2np.interp.description import Json, array_json, describe_pass, describe_token
from gpt2np.interp.trace import trace
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.tokenizer.display import escape_token
from gpt2np.tokenizer.vocabulary import token_bytes
from gpt2np.view import machine_page

__all__ = ["Page", "explain"]

MAX_TOKENS = 64
"""Maximum tokens per page: with more, patterns would be too small and files too large."""

_PARTS = ("lens", "neurons", "lines", "guesses")


@dataclass(frozen=True, repr=False)
class Page:
    """HTML of a page, and the description of the pass in it."""

    html: str
    description: Json

    def __repr__(self) -> str:
        n = len(self.description["ids"])
        return f"<Page about {n} tokens: {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return frame(self.html)


@np.errstate(all="ignore")  # describe_pass checks that the logits are finite
def explain(lm: LanguageModel, prompt: Prompt) -> Page:
    """Create a page that shows how the model processes a prompt, a text or token ids.

    Raises:
        ContextLengthError: the prompt has more than `MAX_TOKENS` tokens, or more than the context.
        InvalidArgumentError: the prompt is empty.
        CheckpointError: some logits are infinite or NaN.
    """
    check_argument(isinstance(lm, LanguageModel), "lm", lm, "a LanguageModel")
    ids = lm.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
    limit = min(MAX_TOKENS, lm.model.config.n_positions)
    if not ids:
        raise InvalidArgumentError("the prompt is empty; give a text of at least one token")
    if len(ids) > limit:
        raise ContextLengthError(
            f"the prompt has {len(ids):,} tokens, and a page holds at most {limit}; shorten it"
        )
    traced = trace(lm, ids)
    described = describe_pass(lm, traced, include=_PARTS, n_lines=len(ids))
    names = [f"blocks.{i}.attn.{x}" for i in range(traced.config.n_layer) for x in "qk"]
    described["points"] = {name: array_json(traced[name], np.float16) for name in names}
    described["details"] = {str(i): describe_token(lm, i) for i in sorted(set(ids))}
    return Page(machine_page(described, f"What happens to “{_short(lm, ids)}”"), described)


def _short(lm: LanguageModel, ids: list[int]) -> str:
    """Shorten the prompt to one line; for a blank prompt, show the tokens with visible symbols."""
    text = lm.tokenizer.decode(ids)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    table = lm.tokenizer.vocabulary.token_bytes
    line = line or "".join(map(escape_token, token_bytes(ids, table))).replace(" ", "␣")
    return line if len(line) <= 60 else f"{line[:59]}…"
