"""Perplexity of texts, as in Hugging Face's guide "Perplexity of fixed-length models".

A model reads a document in windows of `context` tokens, each `stride` tokens after the previous
window. A token is scored in the first window that contains it, unless it is the first token of that
window, where nothing precedes it. Documents are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.loglikelihood import require_bos_token_id
from gpt2np.evaluation.result import PER_UNIT, PerUnitResult, ProgressCallback, exp, ignore_progress
from gpt2np.generation.scoring import (
    Span,
    check_window,
    score_windows,
    strided_count,
    strided_spans,
    windows_of,
)
from gpt2np.kernels.array import IntArray
from gpt2np.language_model import LanguageModel


@dataclass(frozen=True)
class Perplexity(PerUnitResult):
    """Perplexity per token, word, byte and character.

    Words, bytes and characters are those of the whole text; the few tokens that are not scored
    count with the mean of the scored tokens.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, without end-of-text tokens put before documents.
        words: number of runs of non-white-space characters.
        characters: number of Unicode characters.
        bytes: number of bytes in UTF-8.
        context: window size in tokens.
        stride: distance of the windows in tokens.
        counted: number of scored tokens.
        log_probability: sum of their log probabilities, in nats.
        guide_mean: mean negative log probability with the guide's weights; see `in_guide`.
    """

    documents: int
    tokens: int
    words: int
    characters: int
    bytes: int
    context: int
    stride: int
    counted: int
    log_probability: float
    guide_mean: float

    definition: ClassVar[str] = "huggingface-fixed-length"
    JSON_FIELDS: ClassVar[tuple[str, ...]] = (
        *("definition", "context", "stride", "documents", "tokens", "counted", "words"),
        *("characters", "bytes", "log_probability", "perplexity", "in_guide", *PER_UNIT),
        "bits_per_character",
    )

    @property
    def mean(self) -> float:
        """Mean negative log probability of a token, in nats."""
        return -self.log_probability / self.counted

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp of the mean over all scored tokens."""
        return exp(self.mean)

    @property
    def in_guide(self) -> float:
        """Perplexity per token as computed by the guide's program.

        The program takes the mean of each window and weights it by the window's scored tokens, but
        by one fewer from the second overlapping window on. The results differ from the fifth digit
        on, less for longer texts.
        """
        return exp(self.guide_mean)

    @property
    def bits_per_character(self) -> float:
        """Negative log probability of a character, to base 2."""
        return self.nats_per(self.characters) / math.log(2)

    @property
    def total_nats(self) -> float:
        """Negative log probability of the whole text, including tokens that are not scored."""
        return self.mean * self.tokens

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table."""
        return [
            ("perplexity", f"{self.perplexity:.4f} per token"),
            ("by the guide's program", f"{self.in_guide:.4f}"),
            *self.per_unit_rows(),
            ("bits per character", f"{self.bits_per_character:.4f}"),
            ("tokens", f"{self.tokens:,}, of which {self.counted:,} count"),
            ("documents", f"{self.documents:,}"),
            ("windows", f"of {self.context} tokens, every {self.stride}"),
        ]


def perplexity(
    lm: LanguageModel,
    documents: Sequence[str],
    *,
    context: int | None = None,
    stride: int | None = None,
    from_end_of_text: bool = False,
    on_progress: ProgressCallback = ignore_progress,
) -> Perplexity:
    """Compute the perplexity of documents; special tokens in them are read as plain text.

    Args:
        lm: the model.
        documents: texts.
        context: window size in tokens; default: the model's context.
        stride: distance of the windows; default: half of `context`. `context` itself gives windows
            without overlap.
        from_end_of_text: put an end-of-text token before each document, so that its first token is
            scored.
        on_progress: called with the number of scored tokens and the perplexity so far.

    Raises:
        InvalidArgumentError: an invalid context or stride, or no token can be scored.
    """
    context, stride = check_window(lm.model, context, stride)
    prefix = [require_bos_token_id(lm)] if from_end_of_text else []
    encoded = [
        np.array([*prefix, *lm.tokenizer.encode(text, disallowed_special=())], np.int64)
        for text in documents
    ]
    n_tokens = sum(len(ids) - len(prefix) for ids in encoded)
    counted = sum(strided_count(len(ids), context, stride) for ids in encoded)
    if not n_tokens:
        raise InvalidArgumentError("there is no text; give a file that is not empty")
    if not counted:
        raise InvalidArgumentError(
            "no token has a token before it; give a longer text, or put an end-of-text token "
            "before it (--from-end-of-text)"
        )
    log_probability, guide_mean = _score(lm, encoded, context, stride, on_progress)
    return Perplexity(
        documents=len(documents),
        tokens=n_tokens,
        words=sum(len(text.split()) for text in documents),
        characters=sum(map(len, documents)),
        bytes=sum(len(text.encode()) for text in documents),
        context=context,
        stride=stride,
        counted=counted,
        log_probability=log_probability,
        guide_mean=guide_mean,
    )


def _score(
    lm: LanguageModel,
    texts: Sequence[IntArray],
    context: int,
    stride: int,
    on_progress: ProgressCallback,
) -> tuple[float, float]:
    """Return the log probability of all scored tokens, and `Perplexity.guide_mean`."""
    windows = (
        window for ids, span in _spans(texts, context, stride) for window in windows_of(ids, [span])
    )
    total = sum(strided_count(len(ids), context, stride) for ids in texts)
    done, log_probability, guide_mean, weights = 0, 0.0, 0.0, 0
    scores = score_windows(lm.model, windows)
    for (_, span), scored in zip(_spans(texts, context, stride), scores, strict=True):
        count, nats = span.stop - span.first, float(scored.log_probabilities.sum())
        done, log_probability = done + count, log_probability + nats
        weight = count if span.start == 0 or stride == context else count - 1
        guide_mean, weights = guide_mean - nats / count * weight, weights + weight
        on_progress(done, total, {"perplexity": exp(-log_probability / done)})
    return log_probability, guide_mean / weights if weights else math.nan


def _spans(texts: Sequence[IntArray], context: int, stride: int) -> Iterator[tuple[IntArray, Span]]:
    """Yield the windows of all texts lazily; a small stride gives many."""
    return ((ids, span) for ids in texts for span in strided_spans(len(ids), context, stride))
