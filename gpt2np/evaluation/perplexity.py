"""Perplexity of documents: per token, word, byte and character.

The model reads each document in windows of `context` tokens, which start every `stride` tokens, as
in Hugging Face's guide "Perplexity of fixed-length models". A token is scored once, in the first
window that contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from gpt2np.data.options import ScoreOptions
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.generation.scoring import TextScore, check_window, score_texts
from gpt2np.kernels import exact
from gpt2np.language_model import LanguageModel
from gpt2np.tokenizer.normalizer import allowed_special

__all__ = ["Perplexity", "perplexity"]

MEASURES = (
    *("perplexity", "word_perplexity", "byte_perplexity"),
    *("bits_per_character", "bits_per_byte"),
)
"""The measures that follow from the counts of a Perplexity."""


@dataclass(frozen=True)
class Perplexity:
    """Counts and log probability of documents; `a + b` is the sum over both.

    Measures per word, byte and character are those of the whole text: a token that is not scored,
    because no token precedes it, is assumed to have the mean log probability of the scored tokens.
    A measure is NaN if no token is scored.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, without the end-of-text tokens put before documents.
        counted: number of scored tokens.
        words: number of words, separated by white space.
        characters: number of Unicode characters.
        bytes: number of bytes in UTF-8.
        log_probability: sum of the scored tokens' log probabilities, in nats.
    """

    documents: int = 0
    tokens: int = 0
    counted: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    log_probability: float = 0.0

    @classmethod
    def of(cls, text: str, score: TextScore) -> Perplexity:
        """Return the perplexity of one document from the score of its tokens."""
        total = score.total if score.n_scored else 0.0
        n_bytes = len(text.encode())
        counts = len(score.ids), score.n_scored, len(text.split()), len(text), n_bytes
        return cls(1, *counts, total)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Perplexity:
        """Return the perplexity of one document from its row of `gpt2np score`."""
        counts = {field.name: row.get(field.name) or 0 for field in fields(cls)}
        return cls(**{**counts, "documents": 1})

    def __add__(self, other: Perplexity) -> Perplexity:
        values = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Perplexity(*(a + b for a, b in values))

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp of the scored tokens' mean negative log probability."""
        return _exp(self._nats_per(self.tokens))

    @property
    def word_perplexity(self) -> float:
        """exp of the negative log probability per word; infinity on overflow."""
        return _exp(self._nats_per(self.words))

    @property
    def byte_perplexity(self) -> float:
        """exp of the negative log probability per byte."""
        return _exp(self._nats_per(self.bytes))

    @property
    def bits_per_character(self) -> float:
        """Mean negative log probability per character, to base 2."""
        return self._nats_per(self.characters) / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Mean negative log probability per byte, to base 2."""
        return self._nats_per(self.bytes) / math.log(2)

    def _nats_per(self, count: int) -> float:
        if not self.counted:
            return math.nan
        nats = -self.log_probability / self.counted
        if count == self.tokens:
            return nats
        return nats * self.tokens / count if count else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return counts and measures as a dict, with None for infinite and undefined values."""
        values = asdict(self) | {name: getattr(self, name) for name in MEASURES}
        if not self.counted:
            values["log_probability"] = math.nan
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def to_text(self) -> str:
        """Format counts and measures as a table of two columns."""
        rows = [(name.replace("_", " "), _readable(getattr(self, name))) for name in MEASURES]
        scored = "" if self.counted == self.tokens else f", of which {self.counted:,} are scored"
        rows += [("tokens", f"{self.tokens:,}{scored}"), ("documents", f"{self.documents:,}")]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _exp(nats: float) -> float:
    return float(exact.exp(np.float64(nats)))


def _readable(value: float) -> str:
    """Format a perplexity; a perplexity per word can be astronomically large."""
    if not value >= 10_000:
        return f"{value:.4f}"
    return f"{value:,.0f}" if value < 1e9 else f"{value:.3g}"


def perplexity(
    lm: LanguageModel,
    documents: Sequence[str],
    *,
    context: int | None = None,
    stride: int | None = None,
    from_end_of_text: bool = True,
) -> Perplexity:
    """Compute the perplexity of documents; special tokens in a document are read as plain text.

    Windows of `context` tokens start every `stride` tokens. By default, `context` is the model's
    context, and `stride` is half of `context`. `from_end_of_text` puts an end-of-text token before
    each document, so that the document's first token is scored.

    Raises:
        InvalidArgumentError: context or stride is invalid, the model has no end-of-text token, or
            no token can be scored.
    """
    is_list = isinstance(documents, Sequence) and not isinstance(documents, (str, bytes))
    check_argument(is_list, "documents", documents, "a list of texts")
    options = ScoreOptions(context=context, stride=stride, from_end_of_text=from_end_of_text)
    scores = score_in_windows(lm, documents, options)
    total = sum(map(Perplexity.of, documents, scores), Perplexity())
    check_scored(total)
    return total


def check_scored(total: Perplexity) -> None:
    """Raise InvalidArgumentError if no token was scored."""
    if not total.tokens:
        raise InvalidArgumentError("there is no text that could be read; give a file that has some")
    if not total.counted:
        raise InvalidArgumentError(
            "from_end_of_text is False and no token has a token before it; give a longer text, or "
            "set `from_end_of_text`",
            param="from_end_of_text",
        )


def score_in_windows(
    lm: LanguageModel, texts: Sequence[str], options: ScoreOptions
) -> list[TextScore]:
    """Score texts, of which those of similar length share forward passes; see `score_texts`.

    Raises InvalidArgumentError for an invalid context or stride, or a missing end-of-text token.
    """
    check_score_options(lm, options)
    prefix = [lm.bos_token_id] if options.from_end_of_text and lm.bos_token_id is not None else []
    allowed = allowed_special(options.special)
    inputs = [
        lm.tokenizer.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        for text in texts
    ]
    order = sorted(range(len(texts)), key=lambda i: len(inputs[i]))
    found = score_texts(
        lm.model,
        [inputs[i] for i in order],
        [prefix] * len(texts),
        options.context,
        options.stride,
    )
    scores = dict(zip(order, found, strict=True))
    return [scores[i] for i in range(len(texts))]


def check_score_options(lm: LanguageModel, options: ScoreOptions) -> None:
    """Raise InvalidArgumentError if an option is invalid for the model."""
    check_window(lm.model, options.context, options.stride)
    if options.from_end_of_text and lm.bos_token_id is None:
        raise InvalidArgumentError(
            f"from_end_of_text must be False: {lm.name} has no end-of-text token to put before a "
            "document",
            param="from_end_of_text",
        )
