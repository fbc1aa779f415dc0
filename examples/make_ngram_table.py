"""Build the n-gram table that provides draft tokens for texts like yours.

    python examples/make_ngram_table.py texts/*.txt --model gpt2 --out table.safetensors
    gpt2np generate "Once upon a time" --model gpt2 --draft table.safetensors

Texts that the model itself has generated make the best table. In the model's folder, under the
name ngram_draft.safetensors, it is used by default. A table changes only the speed.

An n-gram's key (uint64) is a number in base V, the vocabulary size, whose digits are the n-gram's
ids, first id highest. The key modulo V^(n - 1) is the key of the last n - 1 ids.

Probabilities are interpolated with absolute discounting (Ney, Essen and Kneser 1994): a constant is
subtracted from each count, and the probability mass removed goes to the next shorter context.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from gpt2np.cli.model_options import load_tokenizer
from gpt2np.generation.ngram_table import (
    MAX_CONTEXT,
    METADATA_KEY,
    NgramTable,
    hash_contexts,
    vocabulary_fingerprint,
)

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]

_DISCOUNT = 0.75  # subtracted from each count
_MIN_GAIN = 1.0  # tokens of the corpus
_HEADER_BYTES = 1024  # of a table, at most


Counts = list[tuple[Keys, NDArray[np.uint32]]]
"""For n = 1, 2, …: the n-grams as sorted integer keys, and their counts."""


def count_ngrams(ids: Sequence[int], vocab_size: int) -> Counts:
    """Count the n-grams of a corpus, for n from 1 to 4 (3 if vocab_size exceeds 65,536)."""
    # Four ids of a larger vocabulary exceed 64 bits.
    max_order = MAX_CONTEXT + 1 if vocab_size <= 1 << 16 else MAX_CONTEXT
    last = np.asarray(ids, np.uint64)
    keys, counts = np.zeros(len(last) + 1, np.uint64), []
    for n in range(1, min(max_order, len(last)) + 1):
        keys = keys[:-1] * np.uint64(vocab_size) + last[n - 1 :]
        distinct, n_times = np.unique(keys, return_counts=True)
        counts.append((distinct, n_times.astype(np.uint32)))
    return counts


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


def build_table(counts: Counts, vocab_size: int, fingerprint: str, max_entries: int) -> NgramTable:
    """Build a table of the contexts with the highest gain, at most `max_entries`.

    A context's gain is the expected number of corpus tokens that the context predicts, minus the
    number predicted without the context's first id. Contexts with a gain below 1 are left out.
    `fingerprint` identifies the vocabulary.
    """
    orders: list[_Order] = []
    for keys, key_counts in counts:
        shorter = orders[-1] if orders else None
        orders.append(_predict(keys, key_counts, vocab_size, len(orders), shorter))
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
        vocab_size,
        fingerprint,
        kept_hashes,
        next_ids.astype(id_dtype(vocab_size)),
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


def id_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return the dtype of token ids in a table, as small as the vocabulary allows."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def max_entries(max_bytes: int, vocab_size: int) -> int:
    """Return how many contexts fit in a file of `max_bytes` bytes."""
    entry_bytes = 4 + np.dtype(id_dtype(vocab_size)).itemsize + 1
    return max(0, max_bytes - _HEADER_BYTES) // entry_bytes


def save_table(table: NgramTable, path: Path) -> None:
    """Write a table to a file; an existing file is replaced."""
    description = {
        "version": 1,
        "vocab_size": table.vocab_size,
        "vocabulary_sha256": table.fingerprint,
    }
    names = ("hashes", "next_ids", "probabilities")
    # A single key, because the package safetensors writes several in random order.
    metadata = {METADATA_KEY: json.dumps(description)}
    path.write_bytes(save({name: getattr(table, name) for name in names}, metadata))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="text files")
    parser.add_argument("--model", required=True, help="the model, or a folder with its vocabulary")
    parser.add_argument("--out", type=Path, required=True, help="table to write (.safetensors)")
    parser.add_argument("--max-bytes", type=int, default=4_000_000, help="size (default: 4000000)")
    args = parser.parse_args()
    tokenizer, _ = load_tokenizer(args.model)
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    for file in args.files:
        ids += tokenizer.encode(file.read_text(encoding="utf-8"), disallowed_special=()) + eos
    size = tokenizer.vocab_size
    fingerprint = vocabulary_fingerprint(tokenizer.vocabulary.token_bytes, size)
    counts = count_ngrams(ids, size)
    table = build_table(counts, size, fingerprint, max_entries(args.max_bytes, size))
    save_table(table, args.out)
    print(f"{len(table.hashes):,} contexts of {len(ids):,} tokens: {args.out}")


if __name__ == "__main__":
    main()
