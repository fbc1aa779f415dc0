"""Count the pieces of a corpus, and write the distinct pieces as one array of symbols.

Words repeat, so a corpus is counted before it is pre-tokenized: count the words between spaces (see
`gpt2np.tokenizer.pre_tokenizer`), then split only the distinct ones into pieces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.added_tokens import any_literal
from gpt2np.tokenizer.pre_tokenizer import (
    WHITESPACE_SPLITTING_PATTERNS,
    WORD_SPLITTING_PATTERNS,
    PreTokenizer,
    iter_segments,
    make_pre_tokenizer,
    split_words,
    word_text,
)
from gpt2np.tokenizer.vocabulary import SPACE_PLACEHOLDER

Alphabet = Literal["bytes", "characters"]
Codes = NDArray[np.uint8] | NDArray[np.uint32]

N_CODE_POINTS = 0x110000
MAX_POSITIONS = 1 << 31
SEPARATOR_CODES: dict[Alphabet, int] = {"bytes": 0xFF, "characters": 0xDFFF}
"""A byte that UTF-8 never has, and a code point that no text has."""

_MAX_WORDS = 1 << 19  # distinct words to count before they are split into pieces
_BINCOUNT_SIZE = 1 << 22


def split_at_separators(separators: Collection[str], documents: Iterable[str]) -> Iterator[str]:
    """Split the documents at any of `separators`, the longest first."""
    split = any_literal(frozenset(separators)).split
    for document in documents:
        if any(separator in document for separator in separators):
            yield from split(document)
        else:
            yield document


def count_pieces(documents: Iterable[str], pattern: str | None) -> Counter[str]:
    """Count the occurrences of each piece. Memory grows with the number of distinct pieces."""
    pre_tokenize = pattern_pre_tokenizer(pattern)
    pieces: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for document in documents:
        for segment, keys in _split_document(document, pattern):
            if keys is None:
                pieces.update(pre_tokenize(segment))
            else:
                words.update(keys)
        if len(words) > _MAX_WORDS:
            _move_words(words, pieces, pre_tokenize)
    _move_words(words, pieces, pre_tokenize)
    return pieces


def token_counter(pattern: str | None, tokens_per_piece: Mapping[str, int]) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text from those of its pieces."""
    pre_tokenize = pattern_pre_tokenizer(pattern)
    cache: dict[str, int] = {}

    def count_in_word(key: str) -> int:
        if len(cache) > _MAX_WORDS:
            cache.clear()
        cache[key] = sum(map(tokens_per_piece.__getitem__, pre_tokenize(word_text(key))))
        return cache[key]

    def count(text: str) -> int:
        total = 0
        for segment, keys in _split_document(text, pattern):
            if keys is None:
                total += sum(map(tokens_per_piece.__getitem__, pre_tokenize(segment)))
            else:
                total += sum([cache[key] if key in cache else count_in_word(key) for key in keys])
        return total

    return count


def pattern_pre_tokenizer(pattern: str | None) -> PreTokenizer:
    """Return the pre-tokenizer of `pattern`; None: a text is one piece.

    Raises:
        InvalidArgumentError: `pattern` is not a regular expression.
    """
    return make_pre_tokenizer(() if pattern is None else (pattern,))


def _split_document(document: str, pattern: str | None) -> Iterator[tuple[str, list[str] | None]]:
    """Yield segments of a document, each with the keys of its words if the pattern allows it."""
    if pattern not in WORD_SPLITTING_PATTERNS:
        yield document, None
        return
    at_newlines = pattern in WHITESPACE_SPLITTING_PATTERNS
    for segment in iter_segments(document):
        yield segment, split_words(segment, at_newlines=at_newlines)


def _move_words(words: Counter[str], pieces: Counter[str], pre_tokenize: PreTokenizer) -> None:
    """Move the counts of `words` to those of their pieces."""
    by_count: defaultdict[int, list[str]] = defaultdict(list)
    for key, count in words.items():
        text = word_text(key)
        if text == " " + key.strip() != " ":
            by_count[count].append(text)
        else:
            for piece in pre_tokenize(text):
                pieces[piece] += count
    for count, texts in by_count.items():  # all at once: a space before a word begins a piece
        for piece in pre_tokenize("".join(texts)):
            pieces[piece] += count
    words.clear()


def encode_symbols(pieces: Collection[str], alphabet: Alphabet) -> Codes:
    """Return (N,) the bytes or code points of `pieces`, with the separator's code around each.

    Raises:
        InvalidArgumentError: a piece has a lone surrogate, or the pieces are too long in total.
    """
    try:
        codes = _encode_bytes(pieces) if alphabet == "bytes" else _encode_code_points(pieces)
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise InvalidArgumentError(
            f"a document has the lone surrogate U+{code:04X}, which is not Unicode text"
        ) from error
    if len(codes) >= MAX_POSITIONS:
        raise InvalidArgumentError(
            f"the distinct pieces have {len(codes)} {alphabet}, the limit is {MAX_POSITIONS}; use "
            "less text, or a pattern"
        )
    return codes


def _encode_bytes(pieces: Iterable[str]) -> Codes:
    separator = bytes([SEPARATOR_CODES["bytes"]])
    joined = separator.join([b"", *(piece.encode() for piece in pieces), b""])
    return np.frombuffer(joined, np.uint8)


def _encode_code_points(pieces: Iterable[str]) -> Codes:
    for piece in pieces:
        piece.encode()  # raises for a surrogate, which could be the separator
    joined = chr(SEPARATOR_CODES["characters"]).join(["", *pieces, ""])
    return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")


def position_weights(ends: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (N,) the count of the piece at each position; `ends` are the separators' positions."""
    if len(counts) and counts.min() == counts.max():
        return np.broadcast_to(counts[0], ends[-1] + 1)  # takes no memory
    return np.repeat(np.append(counts, 0), np.diff(ends, append=ends[-1] + 1))


def frequent_characters(
    codes: Codes, weights: NDArray[np.int64], limit: int | None
) -> NDArray[np.intp]:
    """Return the code points in `codes`, ascending; at most the `limit` most frequent ones."""
    counts = np.zeros(N_CODE_POINTS)
    for start in range(0, len(codes), _BINCOUNT_SIZE):
        part = slice(start, start + _BINCOUNT_SIZE)
        counts += np.bincount(codes[part], weights[part], N_CODE_POINTS)
    counts[[SEPARATOR_CODES["characters"], ord(SPACE_PLACEHOLDER)]] = 0  # neither is a character
    distinct = np.flatnonzero(counts)
    by_frequency = np.argsort(-counts[distinct], kind="stable")
    return np.sort(distinct[by_frequency[:limit]])
