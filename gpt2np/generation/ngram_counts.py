"""N-gram counts of a corpus of token ids, from which an n-gram table is built.

An n-gram's key (uint64) is a number in base V, the vocabulary size, whose digits are the n-gram's
ids, first id highest. The key modulo V^(n - 1) is the key of the last n - 1 ids.

Probabilities are interpolated with absolute discounting (Ney, Essen and Kneser 1994): a constant is
subtracted from each count, and the probability mass removed goes to the next shorter context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.generation.ngram_table import MAX_CONTEXT, NgramTable, hash_contexts, id_dtype

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]

_CHUNK = 1 << 21  # ids whose n-grams are sorted at once
_DISCOUNT = 0.75  # subtracted from each count
_MIN_GAIN = 1.0  # tokens of the corpus


class NgramCounts:
    """Counts of the n-grams of a corpus, for n from 1 to 4 (3 if vocab_size exceeds 65,536).

    Attributes:
        vocab_size: number of token ids.
        n_ids: number of ids counted.
    """

    def __init__(self, vocab_size: int, max_ngrams: int = 1 << 24) -> None:
        """Keep at most `max_ngrams` different n-grams, in about 50 bytes each.

        The rarest n-grams are dropped (lossy counting, Manku and Motwani 2002).
        """
        self.vocab_size = vocab_size
        self.n_ids = 0
        # Four ids of a larger vocabulary exceed 64 bits.
        max_order = MAX_CONTEXT + 1 if vocab_size <= 1 << 16 else MAX_CONTEXT
        self._counts = [(np.empty(0, np.uint64), np.empty(0, np.uint32)) for _ in range(max_order)]
        self._max_ngrams = max_ngrams
        self._pending: list[NDArray[np.uint64]] = []
        self._n_pending = 0

    def add(self, ids: Sequence[int]) -> None:
        """Count the n-grams of the next ids of the corpus."""
        self._pending.append(np.array(ids, np.uint64))
        self._n_pending += len(ids)
        self.n_ids += len(ids)
        if self._n_pending >= _CHUNK:
            self._count_pending()

    def by_order(self) -> list[tuple[Keys, NDArray[np.uint32]]]:
        """Return, for n = 1, 2, …, the n-grams as sorted integer keys, and their counts."""
        self._count_pending()
        return self._counts

    def _count_pending(self) -> None:
        ids = np.concatenate([np.empty(0, np.uint64), *self._pending])
        keys = np.zeros(len(ids) + 1, np.uint64)
        for n in range(1, len(self._counts) + 1):
            keys = keys[:-1] * np.uint64(self.vocab_size) + ids[n - 1 :]
            self._counts[n - 1] = _merge(*self._counts[n - 1], np.sort(keys))
            if not len(keys):
                break
        self._pending, self._n_pending = [], 0
        rarest = 1
        while sum(len(keys) for keys, _ in self._counts) > self._max_ngrams:
            self._counts = [(k[c > rarest], c[c > rarest]) for k, c in self._counts]
            rarest *= 2


def _merge(keys: Keys, counts: NDArray[np.uint32], new: Keys) -> tuple[Keys, NDArray[np.uint32]]:
    """Count the sorted n-gram keys `new`, and merge the counts into sorted `keys` and `counts`."""
    if not len(new):
        return keys, counts
    starts = _run_starts(new)
    new_counts = np.diff(starts, append=len(new)).astype(np.uint32)
    keys, counts = np.concatenate([keys, new[starts]]), np.concatenate([counts, new_counts])
    order = np.argsort(keys, kind="stable")  # merges the two sorted halves
    keys, counts = keys[order], counts[order]
    starts = _run_starts(keys)
    return keys[starts], np.add.reduceat(counts, starts, dtype=np.uint32)


def _run_starts(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the first index of each run of equal values."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length n, and the likeliest id after each context of n - 1 ids."""

    keys: Keys  # of the n-grams
    probabilities: Floats  # of each n-gram's last id, given its context
    contexts: Keys
    best_ids: Keys
    best_probabilities: Floats
    gains: Floats  # of each context; see `build_table`


def build_table(counts: NgramCounts, fingerprint: str, max_entries: int) -> NgramTable:
    """Build a table of the contexts with the highest gain, at most `max_entries`.

    A context's gain is the expected number of corpus tokens that the context predicts, minus the
    number predicted without the context's first id. Contexts with a gain below 1 are left out.
    `fingerprint` identifies the vocabulary.
    """
    orders: list[_Order] = []
    for keys, key_counts in counts.by_order():
        if len(keys):
            shorter = orders[-1] if orders else None
            orders.append(_predict(keys, key_counts, counts.vocab_size, len(orders), shorter))
    if not orders:
        raise ValueError("no n-gram has been counted")
    orders[0].gains[:] = np.inf  # the most frequent id is the last resort
    gains = np.concatenate([order.gains for order in orders])
    hashes = np.concatenate([hash_contexts(o.contexts, n) for n, o in enumerate(orders)])
    best = np.argsort(-gains, kind="stable")[:max_entries]
    best = best[gains[best] >= _MIN_GAIN]
    # Of contexts with equal hashes, keep the one with the highest gain.
    kept_hashes, first = np.unique(hashes[best], return_index=True)
    kept = best[first]
    next_ids = np.concatenate([order.best_ids for order in orders])[kept]
    probabilities = np.concatenate([order.best_probabilities for order in orders])[kept]
    return NgramTable(
        counts.vocab_size,
        fingerprint,
        kept_hashes,
        next_ids.astype(id_dtype(counts.vocab_size)),
        np.minimum(probabilities * 256, 255).astype(np.uint8),
    )


def _predict(
    keys: Keys, counts: NDArray[np.uint32], vocab_size: int, length: int, shorter: _Order | None
) -> _Order:
    """Find the likeliest next id after each context of `length` ids, by n-gram keys and counts.

    `shorter` is the result for contexts of `length` - 1 ids; None if `length` is 0.
    """
    base = np.uint64(vocab_size)
    contexts = keys // base
    starts = _run_starts(contexts)
    contexts = contexts[starts]
    n_next = np.diff(starts, append=len(keys))  # different next ids
    totals = np.add.reduceat(counts, starts, dtype=np.float64)
    # The probability that discounting leaves to the distribution after the shorter context.
    left_over = _DISCOUNT * n_next / totals
    context_of = np.repeat(np.arange(len(starts)), n_next)
    probabilities = (counts - _DISCOUNT) / totals[context_of]
    if shorter is not None:
        suffixes = np.searchsorted(shorter.keys, keys % base ** np.uint64(length))
        probabilities += left_over[context_of] * shorter.probabilities[suffixes]
    highest = np.maximum.reduceat(probabilities, starts)
    candidates = np.flatnonzero(probabilities == highest[context_of])
    best_ids = keys[candidates[_run_starts(context_of[candidates])]] % base
    gains = totals * highest
    if shorter is not None:
        suffixes = np.searchsorted(shorter.contexts, contexts % base ** np.uint64(length - 1))
        alternatives = contexts * base + shorter.best_ids[suffixes]
        index = np.minimum(np.searchsorted(keys, alternatives), len(keys) - 1)
        unseen = left_over * shorter.best_probabilities[suffixes]
        gains -= totals * np.where(keys[index] == alternatives, probabilities[index], unseen)
    return _Order(keys, probabilities, contexts, best_ids, highest, gains)
