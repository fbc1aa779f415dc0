"""Pieces of text as one array of alphabet symbols, with a separator before, between and after."""

from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.vocabulary import SPACE

Alphabet = Literal["bytes", "characters"]
Codes = NDArray[np.uint8] | NDArray[np.uint32]

CODE_POINTS = 0x110000
MOST_PLACES = 1 << 31
SEPARATOR_CODES: dict[Alphabet, int] = {"bytes": 0xFF, "characters": 0xDFFF}
"""A byte that is in no UTF-8, a code point that is in no text."""

_BLOCK = 1 << 22


def codes_of(pieces: Collection[str], alphabet: Alphabet) -> Codes:
    """(places,) the bytes or the code points of `pieces`, and the separator's code.

    Raises:
        InvalidArgumentError: a piece holds a lone surrogate, or they are too long in all.
    """
    try:
        codes = _bytes(pieces) if alphabet == "bytes" else _code_points(pieces)
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise InvalidArgumentError(
            f"a document holds the lone surrogate U+{code:04X}, which is no Unicode text"
        ) from error
    if len(codes) >= MOST_PLACES:
        raise InvalidArgumentError(
            f"{len(codes)} {alphabet} are left to learn from after counting, and {MOST_PLACES} is "
            "the limit; take less text, or a split pattern"
        )
    return codes


def _bytes(pieces: Iterable[str]) -> Codes:
    separator = bytes([SEPARATOR_CODES["bytes"]])
    joined = separator.join([b"", *(piece.encode() for piece in pieces), b""])
    return np.frombuffer(joined, np.uint8)


def _code_points(pieces: Iterable[str]) -> Codes:
    for piece in pieces:
        piece.encode()  # raises for surrogates, which the separator must not be taken for
    joined = chr(SEPARATOR_CODES["characters"]).join(["", *pieces, ""])
    return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")


def weights_of(ends: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(places,) for each place the count of its piece; `ends` are the places of the separators."""
    if len(counts) and counts.min() == counts.max():
        return np.broadcast_to(counts[0], ends[-1] + 1)  # takes no memory
    return np.repeat(np.append(counts, 0), np.diff(ends, append=ends[-1] + 1))


def frequent_characters(
    codes: Codes, weights: NDArray[np.int64], limit: int | None
) -> NDArray[np.intp]:
    """The code points in `codes`, ascending; with a limit, the most frequent ones."""
    counts = np.zeros(CODE_POINTS)
    for start in range(0, len(codes), _BLOCK):
        block = slice(start, start + _BLOCK)
        counts += np.bincount(codes[block], weights[block], CODE_POINTS)
    counts[[SEPARATOR_CODES["characters"], ord(SPACE)]] = 0  # neither is a character
    kinds = np.flatnonzero(counts)
    by_frequency = np.argsort(-counts[kinds], kind="stable")
    return np.sort(kinds[by_frequency[:limit]])
