"""A request: a prompt with all that its generation needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from gpt2np.generation.callbacks import Callbacks
from gpt2np.generation.draft_source import DraftSource
from gpt2np.generation.logits_processors import TokenHistory, process_logits
from gpt2np.generation.options import GenerationOptions
from gpt2np.kernels.array import Array

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.generation.prefix import Prefix
    from gpt2np.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and how to continue it; `gpt2np.generation.prepare` makes one.

    Attributes:
        ids: token ids of the prompt, including the prefix; at least one.
        options: the options, with the seed set, and with the ids of `bad_words`.
        eos_token_ids: token ids that end a text.
        text: the text of the prompt.
        tokenizer: decodes the new token ids; None if only ids are wanted.
        constraint: the constraint of the options or of the caller, in its initial state.
        callbacks: the caller's functions.
        prefix: the precomputed start of the prompt, if any.
        draft_source: starts the draft of each continuation; None for no draft tokens.
        model_name: the name of the language model.
        index: the index of the continuation among all continuations of the call, from 0.
        n_healed: with token healing, how many bytes of the prompt's text the new tokens repeat.
    """

    ids: Sequence[int]
    options: GenerationOptions
    eos_token_ids: Collection[int] = ()
    _: KW_ONLY
    text: str = ""
    tokenizer: Tokenizer | None = None
    constraint: Constraint | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    prefix: Prefix | None = None
    draft_source: DraftSource | None = None
    model_name: str = "model"
    index: int = 0
    n_healed: int = 0

    def process(
        self, logits: Array, history: TokenHistory, constraint: Constraint | None = None
    ) -> Array:
        """Apply the options, a constraint and the caller's logits processors to logits (V,).

        Raises the errors of `process_logits` and `Callbacks.process`.
        """
        logits = process_logits(logits, self.options, history, self.eos_token_ids, constraint)
        if self.callbacks.logits_processor:
            logits = self.callbacks.process([*history.prompt, *history.generated], logits)
        return logits

    def continuations(self) -> list[Request]:
        """Return one request per continuation, with consecutive seeds and indices."""
        seed = self.options.seed or 0
        return [
            replace(self, options=self.options.with_seed(seed + i), index=self.index + i)
            for i in range(self.options.n_drawn)
        ]
