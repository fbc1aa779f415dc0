"""Perplexity of documents and of WikiText pages.

`perplexity` follows Hugging Face's guide "Perplexity of fixed-length models". The model reads each
document in windows of `context` tokens, which start every `stride` tokens. A token is scored once,
in the first window that contains the token, unless the window starts with the token.

`wikitext` follows lm-evaluation-harness. In a WikiText file, punctuation is surrounded by spaces,
and a hyphen within a word is " @-@ ". The model reads the detokenized text, without these spaces
and marks. Words and bytes are counted in the file's text: a common unit for different tokenizers.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation import ProgressCallback, Result, check_text_list, exp_or_inf, ignore_progress
from gpt2np.evaluation.loglikelihood import require_bos_token_id, rolling_loglikelihoods
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

__all__ = ["Perplexity", "WikiText", "perplexity", "split_pages", "wikitext"]

PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))


class PerUnitResult(Result):
    """Base class of results with a perplexity per word and per byte of the text."""

    words: int
    bytes: int

    @property
    @abstractmethod
    def total_nats(self) -> float:
        """Negative log probability of the whole text, with an estimate for unscored tokens."""

    @property
    def word_perplexity(self) -> float:
        """exp of the negative log probability per word."""
        return exp_or_inf(self.nats_per(self.words))

    @property
    def byte_perplexity(self) -> float:
        """exp of the negative log probability per byte."""
        return exp_or_inf(self.nats_per(self.bytes))

    @property
    def bits_per_byte(self) -> float:
        """Mean negative log probability per byte, to base 2."""
        return self.nats_per(self.bytes) / math.log(2)

    def nats_per(self, count: int) -> float:
        """Return the nats per word, byte or character; `count` is their number in the text."""
        return self.total_nats / count if count else math.inf

    def per_unit_rows(self) -> list[tuple[str, str]]:
        """Return (name, value) rows: perplexity per word and per byte, and bits per byte."""
        return [(name.replace("_", " "), _readable(getattr(self, name))) for name in PER_UNIT]


def _readable(value: float) -> str:
    """Format a perplexity; a perplexity per word can be astronomically large."""
    if value < 10_000:
        return f"{value:.4f}"
    return f"{value:,.0f}" if value < 1e9 else f"{value:.3g}"


@dataclass(frozen=True)
class Perplexity(PerUnitResult):
    """Perplexity per token, word, byte and character.

    Perplexities per word, byte and character are those of the whole text: each unscored token
    is assumed to have the mean log probability of the scored tokens.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, without the end-of-text tokens put before documents.
        words: number of words, separated by white space.
        characters: number of Unicode characters.
        bytes: number of bytes in UTF-8.
        context: size of the windows in tokens.
        stride: distance between the starts of two windows, in tokens.
        counted: number of scored tokens.
        log_probability: sum of the scored tokens' log probabilities, in nats.
        guide_mean: mean negative log probability as computed by the program of Hugging Face's
            guide; see `in_guide`.
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

    definition = "huggingface-fixed-length"
    JSON_FIELDS = (
        *("definition", "context", "stride", "documents", "tokens", "counted", "words"),
        *("characters", "bytes", "log_probability", "perplexity", "in_guide", *PER_UNIT),
        "bits_per_character",
    )

    @classmethod
    def of(cls, documents: Sequence[str], **scores: Any) -> Perplexity:
        """Return the perplexity of documents; `scores` are the fields that follow from scoring."""
        return cls(
            documents=len(documents),
            words=sum(len(text.split()) for text in documents),
            characters=sum(map(len, documents)),
            bytes=sum(len(text.encode()) for text in documents),
            **scores,
        )

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp of the scored tokens' mean negative log probability."""
        return exp_or_inf(-self.log_probability / self.counted)

    @property
    def in_guide(self) -> float:
        """Perplexity per token as computed by the program of Hugging Face's guide.

        The program averages over windows; the weight of a window is its number of scored tokens.
        If windows overlap, the weight of every window except a document's first is too low by one
        token. So the result differs slightly from `perplexity`. The shorter the stride, the larger
        is the difference.
        """
        return exp_or_inf(self.guide_mean)

    @property
    def bits_per_character(self) -> float:
        """Mean negative log probability per character, to base 2."""
        return self.nats_per(self.characters) / math.log(2)

    @property
    def total_nats(self) -> float:
        return -self.log_probability / self.counted * self.tokens

    def rows(self) -> list[tuple[str, str]]:
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
    """Compute the perplexity of documents; special tokens in a document are read as plain text.

    Windows of `context` tokens start every `stride` tokens. By default, `context` is the model's
    context, and `stride` is half of `context`. `from_end_of_text` puts an end-of-text token before
    each document, so that the document's first token is scored. `on_progress` counts scored tokens.

    Raises:
        InvalidArgumentError: context or stride is invalid, or no token can be scored.
    """
    check_text_list("documents", documents)
    context, stride = check_window(lm.model, context, stride)
    prefix = [require_bos_token_id(lm)] if from_end_of_text else []
    encoded = [
        np.array([*prefix, *lm.tokenizer.encode(text, disallowed_special=())], np.int64)
        for text in documents
    ]
    n_tokens = sum(len(ids) - len(prefix) for ids in encoded)
    if not n_tokens:
        raise InvalidArgumentError("there is no text; give a file that is not empty")
    counted, log_probability, guide_mean = _score(
        lm, encoded, len(prefix), context, stride, on_progress
    )
    return Perplexity.of(
        documents,
        tokens=n_tokens,
        context=context,
        stride=stride,
        counted=counted,
        log_probability=log_probability,
        guide_mean=guide_mean,
    )


def _score(
    lm: LanguageModel,
    texts: Sequence[IntArray],
    n_prefix: int,
    context: int,
    stride: int,
    on_progress: ProgressCallback,
) -> tuple[int, float, float]:
    """Score texts that begin with `n_prefix` unscored tokens.

    Returns the number and log probability of scored tokens, and `guide_mean`.
    """
    sizes = context, stride, n_prefix
    total = sum(strided_count(len(ids), *sizes) for ids in texts)
    if not total:
        raise InvalidArgumentError(
            "no token has a token before it; give a longer text, or put an end-of-text token "
            "before it ({from_end_of_text.setting})",
            from_end_of_text=True,
        )

    def all_spans() -> Iterator[tuple[IntArray, Span]]:  # lazy: a small stride gives many spans
        return ((ids, span) for ids in texts for span in strided_spans(len(ids), *sizes))

    windows = (window for ids, span in all_spans() for window in windows_of(ids, [span]))
    done, log_probability, guide_mean, weights = 0, 0.0, 0.0, 0
    scores = score_windows(lm.model, windows)
    for (_, span), scored in zip(all_spans(), scores, strict=True):
        count, nats = span.stop - span.first, math.fsum(scored.logprobs)
        done, log_probability = done + count, log_probability + nats
        weight = count if span.start == 0 or stride == context else count - 1
        guide_mean, weights = guide_mean - nats / count * weight, weights + weight
        on_progress(done, total, {"perplexity": exp_or_inf(-log_probability / done)})
    return total, log_probability, guide_mean / weights if weights else math.nan


@dataclass(frozen=True)
class WikiText(PerUnitResult):
    """Perplexity of WikiText pages.

    `words` and `bytes` are counted in the file's text. As in lm-evaluation-harness, white space at
    the start or the end of a page adds an empty word. `log_probability` is the sum over the
    detokenized pages, in nats. An end-of-text token precedes each page.
    """

    pages: int
    words: int
    bytes: int
    log_probability: float

    definition = "harness"
    JSON_FIELDS = ("definition", "pages", "words", "bytes", "log_probability", *PER_UNIT)

    @property
    def total_nats(self) -> float:
        return -self.log_probability

    def rows(self) -> list[tuple[str, str]]:
        return [*self.per_unit_rows(), ("pages", f"{self.pages:,} ({self.words:,} words)")]


def wikitext(
    lm: LanguageModel, pages: Sequence[str], on_progress: ProgressCallback = ignore_progress
) -> WikiText:
    """Compute the perplexity of WikiText pages from `split_pages`.

    Raises:
        InvalidArgumentError: there are no pages, or the model has no end-of-text token.
    """
    check_text_list("pages", pages)
    if not any(page.strip() for page in pages):
        raise InvalidArgumentError("there is no text; give a WikiText file that is not empty")
    result = WikiText(0, 0, 0, 0.0)
    scores = rolling_loglikelihoods(lm, [detokenize(page) for page in pages])
    for page, score in zip(pages, scores, strict=True):
        result = WikiText(
            result.pages + 1,
            result.words + len(re.split(r"\s+", page)),
            result.bytes + len(page.encode()),
            result.log_probability + score,
        )
        on_progress(result.pages, len(pages), {"word perplexity": result.word_perplexity})
    return result


def split_pages(text: str) -> list[str]:
    """Split the text of a WikiText file before every title, a line such as " = Robert Boulter = ".

    The pages are those of lm-evaluation-harness's EleutherAI/wikitext_document_level. Blank text
    before the first title is not a page.
    """
    pages: list[list[str]] = [[]]
    for line in text.split("\n"):
        # A title has a single = at each end; titles of sections have several.
        bare = line.replace("= = =", "===").replace("= =", "==").strip()
        if bare.startswith("= ") and bare.endswith(" ="):
            pages.append([])
        pages[-1].append(line)
    joined = ["\n".join(lines) for lines in pages]
    return [page for page in joined[:-1] if page.strip()] + joined[-1:]


def detokenize(page: str) -> str:
    """Detokenize a page exactly like wikitext_detokenizer of lm-evaluation-harness."""
    page = page.replace("s '", "s'")
    page = re.sub("/' [0-9]/", "/'[0-9]/", page)
    for mark in "-,.":
        page = page.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        page = page.replace(f" {mark} ", f"{mark} ")
    for left, right in _BRACKETS:
        inner = rf"\{left}\s*([^\{right}]*?)\s*\{right}"
        page = re.sub(inner, rf"{left}\1{right}", page)
    for level in (4, 3, 2):
        page = page.replace(" ".join("=" * level), "=" * level)
    for old, new in ((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")):
        page = page.replace(old, new)
    return page
