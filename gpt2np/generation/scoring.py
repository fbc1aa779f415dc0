"""Scoring: exact log probabilities of the tokens of given texts.

A text longer than the model's context is scored in windows. Each window is an independent sequence
whose positions start at 0. Memory is bounded: a text needs its token ids and one or two numbers per
token. Only the logits of 128 tokens are in memory at a time.

Shape letters: T tokens of a text, n tokens of a window, R rows of logits, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.display import colored_tokens
from gpt2np.errors import InvalidArgumentError, check_argument, counted, is_integer
from gpt2np.generation.logits_processors import logits_error
from gpt2np.kernels import exact
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.model import GPT2
from gpt2np.model.ops import exp_and_row_sums
from gpt2np.runtime.arguments import check_sequences
from gpt2np.runtime.context import Hook

__all__ = ["ScoredText", "TextScore", "score_texts"]

_MAX_ROWS = 128  # rows of logits in one pass; more are no faster (benchmarks/NOTES.md)
_MAX_TOKENS = 512  # tokens in one pass

Window = tuple[int, int, int]
"""The ids `start` … `stop` - 1, of which `first` … `stop` - 1 are scored; first > start.

A window may have one id more than the model's context: the model does not read the last id.
"""


class ScoredText(NamedTuple):
    """A word or token of a scored text, at the characters `start` … `stop` - 1.

    The log probability is in nats, and the surprisal in bits; NaN if a token is not scored. A list
    of ScoredTexts converts to a pandas or polars DataFrame.
    """

    text: str
    start: int
    stop: int
    logprob: float
    surprisal: float


@dataclass(frozen=True, repr=False)
class TextScore:
    """The log probability of each token of a text, given the preceding tokens.

    Every array is (T,) for T tokens. `logprobs` are natural logarithms. `best` is the most likely
    id at each position. Tokens that are not scored (see `strided_spans`) have log probability NaN
    and `best` -1. If a LanguageModel scored the text, `token_bytes` has the bytes of each token.
    """

    ids: IntArray
    logprobs: NDArray[np.float64]
    best: IntArray
    token_bytes: tuple[bytes, ...] = ()

    def with_tokens(self, table: Mapping[int, bytes]) -> TextScore:
        """Return a copy with the bytes of each token, looked up by id in `table`."""
        return replace(self, token_bytes=tuple(table.get(i, b"") for i in self.ids.tolist()))

    @property
    def tokens(self) -> list[str]:
        r"""The text of each token, as in `Completion.tokens`.

        Bytes of an incomplete character are escaped, as in "\\xf0".
        """
        self._check_bytes()
        return [token.decode("utf-8", "backslashreplace") for token in self.token_bytes]

    def by_token(self) -> list[ScoredText]:
        """Return each token with its span and surprisal.

        The span of a token that ends within a character includes the whole character.
        """
        _, characters = self._characters()
        result, start = [], 0
        scored = zip(self.tokens, self.token_bytes, self.logprobs.tolist(), strict=True)
        for text, token, logprob in scored:
            first, start = int(characters[start]), start + len(token)
            stop = int(characters[start - 1]) + 1 if token else first
            result.append(_scored(text, first, stop, logprob))
        return result

    def by_word(self) -> list[ScoredText]:
        """Return each word with its span and surprisal.

        A word is a maximal run of characters that are not white space; its log probability is the
        sum over its tokens. A white-space token belongs to the next word or, at the end of the
        text, to the last word.
        """
        text, characters = self._characters()
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        if not spans:
            return []
        sizes = np.array([len(token) for token in self.token_bytes])
        token_starts = characters[np.cumsum(sizes) - sizes]
        words = np.searchsorted([stop for _, stop in spans], token_starts, side="right")
        totals = np.zeros(len(spans))
        np.add.at(totals, np.minimum(words, len(spans) - 1), self.logprobs)
        return [
            _scored(text[start:stop], start, stop, total)
            for (start, stop), total in zip(spans, totals.tolist(), strict=True)
        ]

    def _characters(self) -> tuple[str, IntArray]:
        """Return the text, and the character index of each byte and of the end of the text.

        Each byte that is not UTF-8 becomes one U+FFFD.
        """
        self._check_bytes()
        text = b"".join(self.token_bytes).decode("utf-8", "surrogateescape")
        sizes = [len(character.encode("utf-8", "surrogateescape")) for character in text]
        characters = np.append(np.repeat(np.arange(len(text)), sizes), len(text))
        return re.sub("[\udc80-\udcff]", "\ufffd", text), characters

    def _check_bytes(self) -> None:
        if len(self.token_bytes) != len(self.ids):
            raise InvalidArgumentError("words and tokens need a score from LanguageModel.score")

    def __repr__(self) -> str:
        n_tokens, n_unscored = counted(len(self.ids), "token"), len(self.ids) - self.n_scored
        unscored = f" ({n_unscored} not scored)" if n_unscored else ""
        return (
            f"<TextScore of {n_tokens}{unscored}: log probability {self.total:.2f}, "
            f"perplexity {self.perplexity:.2f}>"
        )

    def _repr_html_(self) -> str:
        """Return the text for notebooks, with tokens colored by probability."""
        tokens = self.tokens if self.token_bytes else [f"[{token_id}]" for token_id in self.ids]
        return colored_tokens("", tokens, self.logprobs.tolist())

    @property
    def n_scored(self) -> int:
        """The number of scored tokens."""
        return int(np.count_nonzero(~np.isnan(self.logprobs)))

    @property
    def total(self) -> float:
        """The sum of the scored tokens' log probabilities, in nats; NaN if no token is scored."""
        return math.fsum(self.logprobs[~np.isnan(self.logprobs)]) if self.n_scored else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability; NaN if no token is scored."""
        if not self.n_scored:
            return math.nan
        return float(exact.exp(np.float64(-self.total / self.n_scored)))


def _scored(text: str, start: int, stop: int, logprob: float) -> ScoredText:
    return ScoredText(text, start, stop, logprob, -logprob / math.log(2))


def strided_spans(length: int, context: int, stride: int, n_prefix: int = 0) -> Iterator[Window]:
    """Yield windows (start, first, stop) of `context` tokens that start every `stride` tokens.

    Each token is scored once, in the first window that contains the token, as in Hugging Face's
    guide "Perplexity of fixed-length models". Tokens without a preceding token are not scored: the
    first token of the text and, with stride = context, the first token of each window.

    The first `n_prefix` of the `length` tokens are a prefix, which is not scored. If one pass can
    predict all tokens after the prefix, there is only one window. If the prefix does not fit into
    this window, its first tokens are dropped, as in lm-evaluation-harness.
    """
    if n_prefix and length - n_prefix <= context:
        if n_prefix < length:
            yield max(0, length - context - 1), n_prefix, length
        return
    n_seen = max(1, n_prefix)
    for start in range(0, length, stride):
        stop = min(start + context, length)
        first = max(n_seen, start + 1)
        if first < stop:
            yield start, first, stop
        n_seen = max(n_seen, stop)
        if stop == length:
            return


def score_texts(
    model: GPT2,
    texts: Sequence[ArrayLike],
    prefixes: Sequence[Sequence[int]] | None = None,
    context: int | None = None,
    stride: int | None = None,
    on_progress: Callable[[int], object] = lambda n_tokens: None,
    hook: Hook | None = None,
) -> list[TextScore]:
    """Compute the log probability of each token of several texts, given the tokens before it.

    `prefixes` has the ids before each text, which are not scored (default: none). Windows have
    `context` tokens and start every `stride` tokens; by default, `context` is the model's, and
    `stride` half of it. See `strided_spans` for texts that need only one window. Short texts share
    a forward pass. `on_progress` receives the number of tokens scored since its last call. With a
    `hook`, each window has a separate forward pass.

    Raises:
        InvalidArgumentError: a token id, context or stride is out of its range.
    """
    context, stride = check_window(model, context, stride)
    prefixes = [()] * len(texts) if prefixes is None else prefixes
    pairs = [*zip(prefixes, texts, strict=True)]
    parts = [part for pair in pairs for part in pair if np.size(part)]
    checked = check_sequences(parts, model.config.vocab_size) if parts else []
    ids = np.concatenate([np.empty(0, np.int64), *checked])
    ends = np.cumsum([len(prefix) + np.size(text) for prefix, text in pairs]).tolist()
    texts_at = [*zip([0, *ends], ends, prefixes, strict=False)]
    windows = [
        (begin + start, begin + first, begin + stop)
        for begin, end, prefix in texts_at
        for start, first, stop in strided_spans(end - begin, context, stride, len(prefix))
    ]
    logprobs, best = np.full(len(ids), np.nan), np.full(len(ids), -1)
    for batch in _batches(windows, 0 if hook else _MAX_TOKENS):
        scored = np.concatenate([np.arange(first, stop) for _, first, stop in batch])
        logprobs[scored], best[scored] = _score_batch(model, ids, batch, hook)
        on_progress(len(scored))
    slices = [slice(begin + len(prefix), end) for begin, end, prefix in texts_at]
    return [
        TextScore(ids[part].copy(), logprobs[part].copy(), best[part].copy()) for part in slices
    ]


def check_window(model: GPT2, context: int | None, stride: int | None) -> tuple[int, int]:
    """Check context and stride. Returns both, with None replaced by the defaults."""
    n_positions = model.config.n_positions
    context = n_positions if context is None else context
    is_valid = is_integer(context) and 2 <= context <= n_positions
    expected = f"an integer from 2 to {n_positions}, the model's number of positions"
    check_argument(is_valid, "context", context, expected)
    stride = context // 2 if stride is None else stride
    is_valid = is_integer(stride) and 1 <= stride <= context
    most = f"{context}, the context, or the tokens between two windows would not be scored"
    check_argument(is_valid, "stride", stride, f"an integer from 1 to {most}")
    return context, stride


def _batches(windows: Sequence[Window], max_tokens: int) -> Iterator[Sequence[Window]]:
    """Divide windows into batches of at most `max_tokens` ids, or of one window."""
    batch: list[Window] = []
    for window in windows:
        if batch and sum(stop - start for start, _, stop in [*batch, window]) > max_tokens:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _score_batch(
    model: GPT2, ids: IntArray, windows: Sequence[Window], hook: Hook | None
) -> list[NDArray[Any]]:
    """Score windows as packed sequences, in forward passes of bounded size; with a hook, in one.

    Returns the arrays of `_score_logits` for the scored ids of all windows.
    """
    inputs = [ids[start : stop - 1] for start, _, stop in windows]
    cuts = np.cumsum([0, *map(len, inputs)]).tolist()
    rows = np.concatenate(  # packed tokens that need logits
        [
            np.arange(first - 1, stop - 1) + (cut - start)
            for cut, (start, first, stop) in zip(cuts, windows, strict=False)
        ]
    )
    targets = np.concatenate([ids[first:stop] for _, first, stop in windows])
    caches = [model.new_cache() for _ in windows]
    parts, n_scored = [], 0
    for start, stop in [(0, cuts[-1])] if hook else _passes(cuts[-1], rows):
        end = int(np.searchsorted(rows, stop))
        chunks = (
            (ids[max(0, start - cut) : max(0, stop - cut)], cache)
            for ids, cut, cache in zip(inputs, cuts, caches, strict=False)
        )
        new, used = zip(*((ids, cache) for ids, cache in chunks if len(ids)), strict=True)
        with np.errstate(all="ignore"):  # _score_logits raises an error instead
            logits = model.forward(new, used, logits_indices=rows[n_scored:end] - start, hook=hook)
        parts.append(_score_logits(model, logits, targets[n_scored:end]))
        n_scored = end
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _passes(length: int, rows: IntArray) -> Iterator[tuple[int, int]]:
    """Yield the range (start, stop) of packed tokens for each forward pass to compute.

    `rows` are the sorted indices of the tokens that need logits.
    """
    start = 0
    while start < length:
        beyond = rows[np.searchsorted(rows, start) :][_MAX_ROWS : _MAX_ROWS + 1].tolist()
        stop = min([length, start + _MAX_TOKENS, *beyond])
        yield start, stop
        start = stop


def _score_logits(
    model: GPT2, logits: Array, targets: IntArray
) -> tuple[NDArray[np.float64], IntArray]:
    """Score actual ids (R,) with logits (R, V), which are overwritten.

    Returns log probabilities and the most likely ids (R,); ties go to the lowest id.
    """
    logprobs = np.empty(len(targets))
    best = np.empty(len(targets), np.int64)
    exp, row_sums = exp_and_row_sums(logits.dtype)

    def score_rows(rows: slice) -> None:
        chunk = logits[rows]
        index = np.arange(len(chunk))
        best[rows] = chunk.argmax(-1)
        maximum, target = chunk[index, best[rows]], chunk[index, targets[rows]]
        chunk -= maximum[:, None]
        exp(chunk, out=chunk)
        sums = row_sums(chunk)[:, 0].astype(np.float64)
        log_sum = exact.log(sums)
        logprobs[rows] = target.astype(np.float64) - maximum - log_sum

    with np.errstate(all="ignore"):
        parallel_for(score_rows, even_slices(len(targets), python_threads()), python_threads())
    if not np.isfinite(logprobs).all():
        raise logits_error(model)
    return logprobs, best
