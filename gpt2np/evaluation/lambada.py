"""LAMBADA (Paperno et al. 2016): predict the last word of a passage.

Published accuracies of GPT-2 small differ widely, because there are two definitions:

"harness"     lm-evaluation-harness's lambada_openai. The target is the last space and the text
              after it. A prediction is correct if greedy decoding gives every token of the target.
"gpt2-paper"  the evaluation of Radford et al. 2019, section 3.3, whose program is unpublished. The
              target is the last token of the passage, which may be a part of a word. A stop-word
              filter excludes predictions that seldom end a sentence. OpenAI's list of stop words is
              unpublished too, so the filtered accuracy may differ from the paper's. `STOP_WORDS` is
              a list of English function words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation import (
    ProgressCallback,
    Result,
    check_text_list,
    exp_or_inf,
    format_share,
    ignore_progress,
)
from gpt2np.evaluation.loglikelihood import continuation_window, encode_text, require_bos_token_id
from gpt2np.generation.scoring import Window, score_windows
from gpt2np.language_model import LanguageModel
from gpt2np.options import OneOf

__all__ = ["Lambada", "lambada"]

Definition = Literal["harness", "gpt2-paper"]

# Articles and quantifiers, pronouns, prepositions, conjunctions, auxiliary verbs, adverbs.
_FUNCTION_WORDS = """
a an the this that these those some any no every each either neither such both all few many much
more most less least several other another same own

i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it
its itself we us our ours ourselves they them their theirs themselves one who whom whose which
what

of in to for with on at by from about as into like through after over between out against during
without before under around among up down off above below near since until upon within toward
towards across behind beyond onto

and but or nor so yet because although though while if unless than whether

am is are was were be been being do does did doing done have has had having can could will would
shall should may might must ought

not only just very too also then there here now when where why how again once ever never even
still already almost quite rather
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True)
class Lambada(Result):
    """Accuracy and perplexity of a model that predicts the end of passages.

    The target of a prediction is the last word ("harness") or the last token ("gpt2-paper").
    `correct_filtered` counts the correct predictions if stop words are never predicted; it is None
    for "harness". `log_probability` is the sum of the targets' log probabilities, in nats.
    """

    definition: Definition
    passages: int
    correct: int
    correct_filtered: int | None
    log_probability: float

    JSON_FIELDS = ("definition", "passages", "accuracy", "accuracy_filtered", "perplexity")

    @property
    def accuracy(self) -> float:
        """Share of passages whose last word, or last token, is predicted correctly."""
        return self.correct / self.passages

    @property
    def accuracy_filtered(self) -> float | None:
        """Accuracy if stop words are never predicted; None for the definition "harness"."""
        return None if self.correct_filtered is None else self.correct_filtered / self.passages

    @property
    def perplexity(self) -> float:
        """Perplexity: exp of the mean negative log probability of the last words or tokens."""
        return exp_or_inf(-self.log_probability / self.passages)

    def rows(self) -> list[tuple[str, str]]:
        rows = [("accuracy", format_share(self.correct, self.passages))]
        if self.correct_filtered is not None:
            share = format_share(self.correct_filtered, self.passages)
            rows.append(("stop words filtered", share))
        perplexity = ("perplexity", f"{self.perplexity:.4f}")
        return [*rows, perplexity, ("definition", self.definition)]


def lambada(
    lm: LanguageModel,
    passages: Sequence[str],
    definition: Definition = "harness",
    *,
    stop_words: Collection[str] = STOP_WORDS,
    on_progress: ProgressCallback = ignore_progress,
) -> Lambada:
    """Compute accuracy and perplexity of the last words of passages.

    `definition` selects the target: the last word ("harness") or the last token ("gpt2-paper").
    `stop_words`, in lower case, are never predicted in the filtered accuracy of "gpt2-paper".
    `on_progress` counts passages.

    Raises:
        InvalidArgumentError: there are no passages, a passage is empty, or there is no such
            definition.
        ContextLengthError: a target is longer than the model's context.
    """
    check_text_list("passages", passages)
    OneOf("harness", "gpt2-paper").check("definition", definition)
    if not passages:
        raise InvalidArgumentError("there are no passages; give a file that is not empty")
    for number, text in enumerate(passages, 1):
        if not text.strip():
            raise InvalidArgumentError(f"passage {number} is empty; it needs a last word")
    by_paper = definition == "gpt2-paper"
    make_window = last_token_window if by_paper else last_word_window
    windows = [make_window(lm, text) for text in passages]
    excluded = word_token_ids(lm, stop_words) if by_paper else []
    correct, filtered, total = 0, 0, 0.0
    scores = score_windows(lm.model, windows, excluded)
    for done, (window, scored) in enumerate(zip(windows, scores, strict=True), 1):
        target = window.ids[window.first :]
        correct += bool((scored.best == target).all())
        filtered += bool((scored.best_allowed == target).all())
        total += math.fsum(scored.logprobs)
        metrics = {"accuracy": correct / done, "perplexity": exp_or_inf(-total / done)}
        on_progress(done, len(passages), metrics)
    return Lambada(definition, len(passages), correct, filtered if by_paper else None, total)


def last_word_window(lm: LanguageModel, passage: str) -> Window:
    """Return a passage's token ids; only the last space and the text after it are scored."""
    context, _, word = passage.rpartition(" ")
    return continuation_window(lm, context, f" {word}")


def last_token_window(lm: LanguageModel, passage: str) -> Window:
    """Return a passage's token ids; only the last id is scored."""
    ids = encode_text(lm, passage)[-(lm.model.config.n_positions + 1) :]
    ids = ids if len(ids) > 1 else [require_bos_token_id(lm), *ids]
    return Window(np.array(ids), len(ids) - 1)


def word_token_ids(lm: LanguageModel, words: Collection[str]) -> list[int]:
    """Return the ids of tokens that consist of a space and one of `words`, ignoring case."""
    targets = {f" {word}".encode() for word in words}
    token_bytes = lm.tokenizer.vocabulary.token_bytes
    return sorted(token_id for token_id, token in token_bytes.items() if token.lower() in targets)
