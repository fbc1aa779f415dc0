"""How probable given texts are: log probabilities of ids, exact.

Of a text only its ids, and a number or two for each, are held as a whole.

A text that is longer than the model's context is read in windows, each with positions and keys of
its own, as if nothing else had been computed. A window goes through the model in parts, with a KV
cache, and what is as wide as the vocabulary exists for 128 tokens at a time only.

Shape letters: T tokens of a text, n of a window, N packed tokens of one pass, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.model import GPT2, KVCache
from gpt2np.runtime.arguments import check_sequences

Array = NDArray[Any]
Ids = NDArray[np.int64]

_ROWS = 128  # that have logits at the same time; more are no faster (benchmarks/NOTES.md)
_TOKENS = 512  # of one pass


class Span(NamedTuple):
    """A window of a text: its tokens start … stop - 1, of which those from `first` on count."""

    start: int
    first: int
    stop: int


@dataclass(frozen=True)
class Window:
    """Ids that are read together.

    Attributes:
        ids: (n,), at most one more than the model's context, as nothing follows on the last.
        first: of the ids, the first whose probability is asked for; at least 1.
    """

    ids: Ids
    first: int


@dataclass(frozen=True)
class Scored:
    """What the model makes of a window's ids from `first` on, n - first of them.

    Attributes:
        log_probabilities: (n - first,), natural logarithms, float64.
        best: (n - first,), the likeliest id in each one's place; of equal ones the lowest.
        best_allowed: the same without the ids that were excluded.
    """

    log_probabilities: NDArray[np.float64]
    best: Ids
    best_allowed: Ids


@dataclass(frozen=True)
class TextScore:
    """A text's ids and how probable each is after those before it.

    Attributes:
        ids: (T,).
        log_probabilities: (T,), natural logarithms, float64; NaN for an id that has none, because
            nothing comes before it in its window.
        best: (T,), the likeliest id in each one's place; -1 where there is no probability.
    """

    ids: Ids
    log_probabilities: NDArray[np.float64]
    best: Ids

    @property
    def total(self) -> float:
        """The sum of the log probabilities, in nats."""
        return float(np.nansum(self.log_probabilities))

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability; NaN if no id has one."""
        known = self.log_probabilities[~np.isnan(self.log_probabilities)]
        return float(np.exp(-known.mean())) if len(known) else float("nan")


def windows_of(ids: Ids, spans: Iterable[Span]) -> Iterator[Window]:
    """The windows that the spans of a text's ids (T,) name."""
    return (Window(ids[span.start : span.stop], span.first - span.start) for span in spans)


def strided_spans(length: int, context: int, stride: int) -> Iterator[Span]:
    """Windows of `context` tokens, each `stride` further on; only tokens not seen before count.

    As in Hugging Face's guide "Perplexity of fixed-length models". The first token of a text does
    not count, as nothing comes before it, and with stride = context none of any window does.
    """
    done = 1
    for start in range(0, length, stride):
        stop = min(start + context, length)
        first = max(done, start + 1)
        if first < stop:
            yield Span(start, first, stop)
        done = stop
        if stop == length:
            return


def strided_count(length: int, context: int, stride: int) -> int:
    """How many tokens count in all of `strided_spans`."""
    firsts = -(-length // context) if stride == context else min(length, 1)
    return length - firsts


def score_text(
    model: GPT2,
    ids: ArrayLike,
    context: int | None = None,
    stride: int | None = None,
    before: int | None = None,
) -> TextScore:
    """The log probability of each of the ids after those before it, in strided windows.

    Args:
        model: whose probabilities.
        ids: (T,), any number of them.
        context: the tokens of a window; the model's n_positions by default.
        stride: how far on the next window begins; half of the context by default, so that every
            token but those at the beginning has at least so many before it.
        before: an id to put before the text, so that its first id has a probability, too.

    Raises:
        InvalidArgumentError: an impossible id, context or stride.
    """
    context, stride = checked_window(model, context, stride)
    if np.size(ids):
        ids = check_sequences([ids], model.config.vocab_size)[0]
    text = np.asarray(ids, np.int64)
    put = 0 if before is None else 1
    text = text if before is None else np.insert(text, 0, before)
    size = len(text), context, stride
    scores = score_windows(model, windows_of(text, strided_spans(*size)))
    known, best = np.full(len(text), np.nan), np.full(len(text), -1)
    for span, scored in zip(strided_spans(*size), scores, strict=True):
        known[span.first : span.stop] = scored.log_probabilities
        best[span.first : span.stop] = scored.best
    return TextScore(text[put:], known[put:], best[put:])


def checked_window(model: GPT2, context: int | None, stride: int | None) -> tuple[int, int]:
    """The context and the stride, with their defaults: all of the model's context, and half of it.

    Raises:
        InvalidArgumentError: they can't be what they are.
    """
    most = model.config.n_positions
    context = most if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if not 2 <= context <= most:
        raise InvalidArgumentError(
            f"the context is {context}; it must be 2 to {most}, the model's number of positions"
        )
    if not 1 <= stride <= context:
        raise InvalidArgumentError(
            f"the stride is {stride}; it must be 1 to {context}, the context, else the tokens "
            "between two windows would be left out"
        )
    return context, stride


def score_windows(
    model: GPT2, windows: Iterable[Window], excluded: Sequence[int] = ()
) -> Iterator[Scored]:
    """What the model makes of each window, in their order. Short ones share a pass.

    Args:
        model: whose probabilities.
        windows: are asked for as they are needed.
        excluded: ids that `Scored.best_allowed` leaves out.

    Raises:
        CheckpointError: the logits are infinite or not numbers.
        ContextLengthError, InvalidArgumentError: what `GPT2.forward` raises.
    """
    group: list[Window] = []
    for window in windows:
        if group and sum(len(w.ids) for w in [*group, window]) > _TOKENS:
            yield from _score_together(model, group, excluded)
            group = []
        group.append(window)
    if group:
        yield from _score_together(model, group, excluded)


def _score_together(
    model: GPT2, windows: Sequence[Window], excluded: Sequence[int]
) -> Iterator[Scored]:
    """Windows as packed sequences, in as many passes as the bounds ask for."""
    inputs = [window.ids[:-1] for window in windows]
    stops = np.cumsum([len(ids) for ids in inputs])
    starts = stops - [len(ids) for ids in inputs]
    asked = [np.arange(a + w.first - 1, b) for a, b, w in zip(starts, stops, windows, strict=True)]
    rows = np.concatenate(asked)  # of the packed tokens, those that logits are needed for
    targets = np.concatenate([window.ids[window.first :] for window in windows])
    caches = [model.new_cache() for _ in windows]
    parts, done = [], 0
    for start, stop in _passes(int(stops[-1]), rows):
        until = int(np.searchsorted(rows, stop))
        logits = _pass(model, inputs, starts, caches, (start, stop), rows[done:until])
        parts.append(_scored(logits, targets[done:until], excluded))
        done = until
    together = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    cuts = np.cumsum([len(some) for some in asked])[:-1]
    for arrays in zip(*(np.split(array, cuts) for array in together), strict=True):
        yield Scored(*arrays)


def _passes(length: int, rows: Ids) -> Iterator[tuple[int, int]]:
    """0 … length cut so that none has more than _TOKENS tokens, or _ROWS of the rows."""
    start = 0
    while start < length:
        beyond = rows[np.searchsorted(rows, start) :][_ROWS : _ROWS + 1].tolist()
        stop = min([length, start + _TOKENS, *beyond])
        yield start, stop
        start = stop


def _pass(
    model: GPT2,
    inputs: Sequence[Ids],
    starts: Ids,
    caches: Sequence[KVCache],
    part: tuple[int, int],
    rows: Ids,
) -> Array:
    """Logits (R, V) of the rows that lie in a part of the packed tokens."""
    new, held = [], []
    for ids, start, cache in zip(inputs, starts.tolist(), caches, strict=True):
        some = ids[max(0, part[0] - start) : max(0, part[1] - start)]
        if len(some):
            new.append(some)
            held.append(cache)
    with np.errstate(over="ignore", invalid="ignore"):  # it is told below, by name
        return model.forward(new, held, logits_indices=rows - part[0])


def _scored(
    logits: Array, targets: Ids, excluded: Sequence[int]
) -> tuple[NDArray[np.float64], Ids, Ids]:
    """Log softmax of logits (R, V) at the targets (R,), and the arg-max. Spoils the logits."""
    log_probabilities = np.empty(len(targets))
    best = np.empty(len(targets), np.int64)
    best_allowed = np.empty(len(targets), np.int64)
    left_out = np.asarray(excluded, np.int64)

    def some(share: slice) -> None:
        block = logits[share]
        every = np.arange(len(block))
        best[share] = best_allowed[share] = block.argmax(-1)
        highest, chosen = block[every, best[share]], block[every, targets[share]]
        if len(left_out):
            kept = block[:, left_out]
            block[:, left_out] = -np.inf
            best_allowed[share] = block.argmax(-1)
            block[:, left_out] = kept
        block -= highest[:, None]
        np.exp(block, out=block)
        total = np.log(block.sum(-1).astype(np.float64))
        log_probabilities[share] = chosen.astype(np.float64) - highest - total

    with np.errstate(invalid="ignore"):
        parallel_for(some, even_slices(len(targets), python_threads()), python_threads())
    if not np.isfinite(log_probabilities).all():
        raise CheckpointError(
            "the model's logits are not numbers; its weights or config are damaged"
        )
    return log_probabilities, best, best_allowed
