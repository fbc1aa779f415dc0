"""The n-gram table: the most likely next token id after frequent contexts of a few ids.

The file is in the safetensors format: sorted 32-bit hashes of contexts, the next id after each
context, and the probability of the next id. Hash collisions are harmless: at worst, verification
rejects a draft token.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpt2np.errors import CheckpointError
from gpt2np.hub.model_files import NGRAM_TABLE_FILE

_GPT2_TABLE = Path(__file__).parent / "gpt2_ngram_draft" / NGRAM_TABLE_FILE

MAX_CONTEXT = 3
"""Largest number of ids in a context."""

METADATA_KEY = "gpt2np_ngram_table"
_VERSION = 1
_DTYPES = {"hashes": ["uint32"], "next_ids": ["uint16", "uint32"], "probabilities": ["uint8"]}
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: multiplicative hashing
_LENGTH_SEED = 0xD6E8FEB86659FD93  # contexts of different lengths get different hashes


@dataclass(frozen=True)
class NgramTable:
    """The most likely next token id after contexts of up to `MAX_CONTEXT` ids.

    Attributes:
        vocab_size: number of token ids.
        fingerprint: digest of the vocabulary; see `vocabulary_fingerprint`.
        hashes: hashes of the contexts, uint32, in ascending order.
        next_ids: the next id after each context, uint16, or uint32 in a large vocabulary.
        probabilities: the probability of each next id in units of 1/256, uint8.
    """

    vocab_size: int
    fingerprint: str
    hashes: NDArray[np.uint32]
    next_ids: NDArray[np.unsignedinteger[Any]]
    probabilities: NDArray[np.uint8]

    def __reduce__(self) -> tuple[Any, ...]:  # without the memoryviews
        fields = self.vocab_size, self.fingerprint, self.hashes, self.next_ids, self.probabilities
        return NgramTable, fields

    @cached_property
    def _arrays(self) -> tuple[memoryview, memoryview, memoryview, list[int]]:
        # Python reads single values from a memoryview faster than from an array. The last list has
        # the index of the first hash with each value of the upper 12 bits.
        starts = np.searchsorted(self.hashes >> 20, np.arange((1 << 12) + 1)).tolist()
        return self.hashes.data, self.next_ids.data, self.probabilities.data, starts

    def matches(self, token_bytes: Mapping[int, bytes]) -> bool:
        """Tell whether `token_bytes`, id → token, begins with the vocabulary of the table."""
        if self.vocab_size > max(token_bytes, default=-1) + 1:
            return False  # a damaged table's vocabulary may be huge
        return vocabulary_fingerprint(token_bytes, self.vocab_size) == self.fingerprint

    def lookup(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Return the next id after the longest known context at the end of `ids`, or None.

        The next id comes with its probability, in units of 1/256.
        """
        hashes, next_ids, probabilities, starts = self._arrays
        keys, key, digit = [0], 0, 1
        for token_id in ids[: -MAX_CONTEXT - 1 : -1]:
            key += token_id * digit
            digit *= self.vocab_size
            keys.append(key)
        for length in range(len(keys) - 1, -1, -1):
            key = keys[length] * _MULTIPLIER + length * _LENGTH_SEED
            context_hash = key >> 32 & 0xFFFFFFFF
            stop = starts[(context_hash >> 20) + 1]
            index = bisect_left(hashes, context_hash, starts[context_hash >> 20], stop)
            if index < stop and hashes[index] == context_hash:
                return next_ids[index], probabilities[index]
        return None


def hash_contexts(keys: NDArray[np.uint64], length: int) -> NDArray[np.uint32]:
    """Hash contexts of `length` ids, each given as one integer in base `vocab_size`."""
    seed = np.uint64(length * _LENGTH_SEED & 0xFFFFFFFFFFFFFFFF)
    return (keys * np.uint64(_MULTIPLIER) + seed >> np.uint64(32)).astype(np.uint32)


def vocabulary_fingerprint(token_bytes: Mapping[int, bytes], vocab_size: int) -> str:
    """Return a SHA-256 digest of the first `vocab_size` tokens, in hexadecimal."""
    tokens = [token_bytes.get(token_id, b"") for token_id in range(vocab_size)]
    lengths = np.fromiter(map(len, tokens), "<u4", vocab_size)
    return hashlib.sha256(lengths.tobytes() + b"".join(tokens)).hexdigest()


def read_ngram_table(path: Path) -> NgramTable:
    """Read and validate an n-gram table.

    Raises:
        CheckpointError: the file is missing, damaged, or not an n-gram table.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {})[METADATA_KEY])
            arrays = {name: file.get_tensor(name) for name in _DTYPES}
        if description["version"] != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        fingerprint, vocab_size = str(description["vocabulary_sha256"]), description["vocab_size"]
        _check(arrays, vocab_size)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is missing, damaged or not an n-gram table ({error}); make one with "
            "examples/make_ngram_table.py"
        ) from error
    return NgramTable(vocab_size, fingerprint, **arrays)


def _check(arrays: Mapping[str, NDArray[Any]], vocab_size: object) -> None:
    """Raise ValueError unless lookups work; a wrong draft token is harmless."""
    if not isinstance(vocab_size, int):
        raise ValueError("its vocab_size is not an integer")
    hashes = arrays["hashes"]
    for name, dtypes in _DTYPES.items():
        if arrays[name].dtype.name not in dtypes or arrays[name].shape != (hashes.size,):
            raise ValueError(f"{name} has the wrong dtype or shape")


def find_ngram_table(folder: Path | None, token_bytes: Mapping[int, bytes]) -> NgramTable | None:
    """Return the n-gram table for a vocabulary, from the model's folder or the package, if any.

    Raises:
        CheckpointError: the folder's table is damaged.
    """
    paths = [folder / NGRAM_TABLE_FILE] if folder else []
    tables = (read_ngram_table(path) for path in [*paths, _GPT2_TABLE] if path.exists())
    return next((table for table in tables if table.matches(token_bytes)), None)
