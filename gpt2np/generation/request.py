"""A request: one prompt with everything that its generation needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpt2np.generation.callbacks import Callbacks
from gpt2np.generation.options import GenerationOptions

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.generation.prefix import Prefix
    from gpt2np.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and how to continue it; `LanguageModel.request` makes one.

    Nothing below `LanguageModel` resolves a default or encodes a text.

    Attributes:
        ids: token ids of the prompt, including the prefix; at least one.
        options: the options, with the seed set, and with the ids of `bad_words`.
        eos_token_ids: token ids that end a text.
        text: the text of the prompt.
        tokenizer: decodes the new token ids; None if only ids are wanted.
        constraint: the constraint of the options or of the caller, before the first token.
        callbacks: the caller's functions.
        prefix: the precomputed start of the prompt, if any.
        model_name: the name of the language model.
        index: the index of the continuation among all continuations of the call, from 0.
    """

    ids: Sequence[int]
    options: GenerationOptions
    eos_token_ids: Collection[int] = ()
    text: str = ""
    tokenizer: Tokenizer | None = None
    constraint: Constraint | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    prefix: Prefix | None = None
    model_name: str = "model"
    index: int = 0

    def continuations(self) -> list[Request]:
        """Return one request per continuation, with consecutive seeds and indices."""
        seed = self.options.seed or 0
        return [
            replace(self, options=replace(self.options, seed=seed + i), index=self.index + i)
            for i in range(self.options.n_drawn)
        ]
