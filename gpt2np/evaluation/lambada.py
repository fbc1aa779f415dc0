"""LAMBADA (Paperno et al. 2016): predict the last word of a passage.

Published numbers for GPT-2 small differ by half, because there are several definitions:

"harness"     lm-evaluation-harness's lambada_openai. The target is what follows the last space, and
              that space; it is right if each of its tokens is the likeliest after those before it.
"gpt2-paper"  what is publicly known of the evaluation in Radford et al. 2019, section 3.3, whose
              program was never published: the target is the last token of the passage, which need
              not be a whole word; a stop-word filter keeps words that seldom end a sentence from
              being predicted. Which words OpenAI's filter held is not known. Here they are those in
              `stop_words`, so that only the number without the filter is beyond doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.perplexity import exp
from gpt2np.evaluation.progress import Progress, unwatched
from gpt2np.evaluation.requests import continuation_window, encode, end_of_text
from gpt2np.evaluation.stop_words import STOP_WORDS
from gpt2np.generation.scoring import Window, score_windows
from gpt2np.language_model import LanguageModel

Definition = Literal["harness", "gpt2-paper"]


@dataclass(frozen=True)
class Lambada:
    """How well last words are predicted.

    Attributes:
        definition: see the module's docstring.
        passages: how many.
        correct: of these, how many targets were predicted.
        correct_filtered: the same where no stop word may be predicted; None by "harness".
        log_probability: the sum of the targets', in nats.
    """

    definition: Definition
    passages: int
    correct: int
    correct_filtered: int | None
    log_probability: float

    @property
    def accuracy(self) -> float:
        """The share of the passages whose target was predicted."""
        return self.correct / self.passages

    @property
    def accuracy_filtered(self) -> float | None:
        """The same with the stop-word filter, None without one."""
        return None if self.correct_filtered is None else self.correct_filtered / self.passages

    @property
    def perplexity(self) -> float:
        """Per passage: exp of the mean negative log probability of a target."""
        return exp(-self.log_probability / self.passages)


def lambada(
    lm: LanguageModel,
    passages: Sequence[str],
    definition: Definition = "harness",
    *,
    stop_words: Collection[str] = STOP_WORDS,
    progress: Progress = unwatched,
) -> Lambada:
    """Accuracy and perplexity of the passages' ends.

    Args:
        lm: the model.
        passages: texts, each with the word that is to be predicted at its end.
        definition: see the module's docstring.
        stop_words: in lower case; for "gpt2-paper".
        progress: is told the passages that are done, and accuracy and perplexity so far.

    Raises:
        InvalidArgumentError: no passages, or one without a target.
        ContextLengthError: a target longer than the model's context.
    """
    if not passages:
        raise InvalidArgumentError("there are no passages; give a file that holds some")
    for number, text in enumerate(passages, 1):
        if not text.strip():
            raise InvalidArgumentError(f"passage {number} is empty; it needs a last word")
    by_paper = definition == "gpt2-paper"
    window_of = last_token_window if by_paper else last_word_window
    windows = [window_of(lm, text) for text in passages]
    excluded = ids_of_words(lm, stop_words) if by_paper else []
    correct, filtered, total = 0, 0, 0.0
    scores = score_windows(lm.model, windows, excluded)
    for done, (window, scored) in enumerate(zip(windows, scores, strict=True), 1):
        target = window.ids[window.first :]
        correct += bool((scored.best == target).all())
        filtered += bool((scored.best_allowed == target).all())
        total += float(scored.log_probabilities.sum())
        values = {"accuracy": correct / done, "perplexity": exp(-total / done)}
        progress(done, len(passages), values)
    return Lambada(definition, len(passages), correct, filtered if by_paper else None, total)


def last_word_window(lm: LanguageModel, passage: str) -> Window:
    """A passage of which what follows the last space counts, and that space."""
    context, _, word = passage.rpartition(" ")
    return continuation_window(lm, context, f" {word}")


def last_token_window(lm: LanguageModel, passage: str) -> Window:
    """A passage of which the last token counts."""
    ids = encode(lm, passage)[-(lm.model.config.n_positions + 1) :]
    ids = ids if len(ids) > 1 else [end_of_text(lm), *ids]
    return Window(np.array(ids), len(ids) - 1)


def ids_of_words(lm: LanguageModel, words: Collection[str]) -> list[int]:
    """The ids that are one of the words with a space before it, in whatever case."""
    wanted = {f" {word}".encode() for word in words}
    table = lm.tokenizer.vocabulary.token_bytes
    return sorted(number for number, token in table.items() if token.lower() in wanted)
