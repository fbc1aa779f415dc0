"""Perplexity of texts, as in Hugging Face's guide "Perplexity of fixed-length models".

A document is read in windows of `context` tokens, each `stride` further on; the first window's
tokens count, and of every other those that no window before it had. A window's first token never
counts where nothing comes before it. Documents don't see each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.progress import Progress, unwatched
from gpt2np.evaluation.requests import end_of_text
from gpt2np.generation.scoring import (
    Ids,
    Span,
    check_window,
    score_windows,
    strided_count,
    strided_spans,
    windows_of,
)
from gpt2np.language_model import LanguageModel


def exp(nats: float) -> float:
    """e to the power of nats; infinity where that is beyond float64, as for one very long word."""
    return math.exp(nats) if nats < 709 else math.inf


@dataclass(frozen=True)
class Amounts:
    """How much text there is.

    Attributes:
        documents, tokens: how many; an end-of-text that is put before a document is none of them.
        words: runs of what is not white space.
        characters, bytes: of the text in Unicode and in UTF-8.
    """

    documents: int
    tokens: int
    words: int
    characters: int
    bytes: int


@dataclass(frozen=True)
class Perplexity(Amounts):
    """What a model makes of texts.

    Words, characters and bytes are those of the whole text; the few tokens that don't count are
    taken to be as hard, in the mean, as those that do.

    Attributes (and those of Amounts, for all of the text):
        context, stride: of the windows, in tokens.
        counted: the tokens that count.
        log_probability: their sum, in nats.
        guide_mean: the mean negative log probability with the guide's weights, see `in_guide`.
    """

    context: int
    stride: int
    counted: int
    log_probability: float
    guide_mean: float

    @property
    def mean(self) -> float:
        """Negative log probability of a token, in nats."""
        return -self.log_probability / self.counted

    @property
    def perplexity(self) -> float:
        """Per token: exp of the mean, in which each token that counts weighs the same."""
        return exp(self.mean)

    @property
    def in_guide(self) -> float:
        """Per token as the guide's program weighs them.

        That takes the mean over each window and weighs it by the tokens that count in it, but by
        one fewer from the second overlapping window on. It makes a difference from the fifth digit
        on, a smaller one the longer the texts.
        """
        return exp(self.guide_mean)

    @property
    def word_perplexity(self) -> float:
        """exp of the nats per word."""
        return exp(self._nats_per(self.words))

    @property
    def byte_perplexity(self) -> float:
        """exp of the nats per byte."""
        return exp(self._nats_per(self.bytes))

    @property
    def bits_per_byte(self) -> float:
        """Negative log probability, to base 2, of a byte."""
        return self._nats_per(self.bytes) / math.log(2)

    @property
    def bits_per_character(self) -> float:
        """Negative log probability, to base 2, of a character."""
        return self._nats_per(self.characters) / math.log(2)

    def _nats_per(self, count: int) -> float:
        return self.mean * self.tokens / count if count else math.inf


def perplexity(
    lm: LanguageModel,
    documents: Sequence[str],
    *,
    context: int | None = None,
    stride: int | None = None,
    from_end_of_text: bool = False,
    progress: Progress = unwatched,
) -> Perplexity:
    """The perplexity of documents; what looks like a special token in them is plain text.

    Args:
        lm: the model.
        documents: texts.
        context: the model's by default.
        stride: half of the context by default; the context itself for windows side by side.
        from_end_of_text: put an end-of-text before each document, so that its first token counts.
        progress: is told the tokens that are done, and the perplexity so far.

    Raises:
        InvalidArgumentError: an impossible context or stride; or there is no token that counts.
    """
    context, stride = check_window(lm.model, context, stride)
    before = [end_of_text(lm)] if from_end_of_text else []
    texts = [_encoded(lm, text, before) for text in documents]
    amounts = _amounts(documents, sum(len(ids) - len(before) for ids in texts))
    total = sum(strided_count(len(ids), context, stride) for ids in texts)
    if not total:
        raise InvalidArgumentError(_nothing(amounts))
    nats, guide_mean = _sums(lm, texts, context, stride, progress)
    return Perplexity(
        **asdict(amounts),
        context=context,
        stride=stride,
        counted=total,
        log_probability=nats,
        guide_mean=guide_mean,
    )


def _sums(
    lm: LanguageModel, texts: Sequence[Ids], context: int, stride: int, progress: Progress
) -> tuple[float, float]:
    """The log probability of all tokens that count, and the guide's mean, see `Perplexity`."""
    windows = (
        window for ids, span in _spans(texts, context, stride) for window in windows_of(ids, [span])
    )
    total = sum(strided_count(len(ids), context, stride) for ids in texts)
    done, sums, guide, weights = 0, 0.0, 0.0, 0
    scores = score_windows(lm.model, windows)
    for (_, span), scored in zip(_spans(texts, context, stride), scores, strict=True):
        count, nats = span.stop - span.first, float(scored.log_probabilities.sum())
        done, sums = done + count, sums + nats
        weight = count if span.start == 0 or stride == context else count - 1
        guide, weights = guide - nats / count * weight, weights + weight
        progress(done, total, {"perplexity": exp(-sums / done)})
    return sums, guide / weights if weights else math.nan


def _spans(texts: Sequence[Ids], context: int, stride: int) -> Iterator[tuple[Ids, Span]]:
    """The windows of all texts, one after the other: with a small stride they are many."""
    return ((ids, span) for ids in texts for span in strided_spans(len(ids), context, stride))


def _encoded(lm: LanguageModel, text: str, before: list[int]) -> Ids:
    return np.array([*before, *lm.tokenizer.encode(text, disallowed_special=())], np.int64)


def _amounts(documents: Sequence[str], tokens: int) -> Amounts:
    return Amounts(
        documents=len(documents),
        tokens=tokens,
        words=sum(len(text.split()) for text in documents),
        characters=sum(map(len, documents)),
        bytes=sum(len(text.encode()) for text in documents),
    )


def _nothing(amounts: Amounts) -> str:
    if not amounts.tokens:
        return "there is no text; give a file that holds some"
    return (
        "there is no token with another one before it; give a longer text, or let an end-of-text "
        "stand before it (--from-end-of-text)"
    )
