"""The source of draft tokens that a language model has."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpt2np.kernels.blas import small_kernels
from gpt2np.model import GPT2
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt2np.generation.model_draft import ModelDraft
    from gpt2np.generation.ngram_draft import NgramDraft
    from gpt2np.generation.ngram_table import NgramTable


class DraftSource:
    """Starts the drafts of sequences.

    Attributes:
        draft: a draft model, an n-gram table, None for no draft tokens, or "auto".
        folder: the folder of the model's files, which may have an n-gram table.
    """

    def __init__(self, model: GPT2, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.draft: GPT2 | NgramTable | Literal["auto"] | None = "auto"
        self.folder: Path | None = None

    def start(self) -> NgramDraft | ModelDraft | None:
        """Return the draft of one sequence, if there is a source."""
        draft = self.draft
        if isinstance(draft, GPT2):
            from gpt2np.generation.model_draft import ModelDraft

            return ModelDraft(self._model, draft)
        if draft is None or (draft == "auto" and not small_kernels()):
            return None
        from gpt2np.generation.ngram_draft import NgramDraft

        return NgramDraft(lambda: self._auto_table if draft == "auto" else draft)

    @cached_property
    def _auto_table(self) -> NgramTable | None:
        from gpt2np.generation.ngram_table import find_ngram_table

        return find_ngram_table(self.folder, self._tokenizer.vocabulary.token_bytes)
