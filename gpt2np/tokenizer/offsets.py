"""Offsets: the characters and bytes of a text that each token comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

from gpt2np.tokenizer.normalizer import NormalizedPart


class TokenSpan(NamedTuple):
    """Position of a token in a text.

    Attributes:
        id: id of the token.
        start, end: text[start:end] are the characters of which the token has at least one byte.
        byte_start, byte_end: the bytes of the token in the UTF-8 form of the text.
    """

    id: int
    start: int
    end: int
    byte_start: int
    byte_end: int


def char_byte_offsets(text: str) -> list[int]:
    """Return the UTF-8 offset of each character of `text`, and the length in bytes."""
    if text.isascii():
        return list(range(len(text) + 1))
    lengths = (len(character.encode("utf-8", "surrogateescape")) for character in text)
    return list(accumulate(lengths, initial=0))


def part_offsets(
    part: NormalizedPart,
    tokens: Iterable[tuple[int, int]],
    text: str,
    text_offsets: Sequence[int],
) -> Iterator[TokenSpan]:
    """Yield the spans of the tokens of `part`.

    Args:
        part: part of `text`, with spans.
        tokens: (id, number of bytes) of each token of the part.
        text: the whole text.
        text_offsets: `char_byte_offsets(text)`.
    """
    offsets = char_byte_offsets(part.text)
    lengths = (end - start for start, end in pairwise(offsets))
    char_at_byte = list(chain.from_iterable(map(repeat, range(len(part.text)), lengths)))
    at = 0
    for token_id, n_bytes in tokens:
        first, last = char_at_byte[at], char_at_byte[at + n_bytes - 1]
        start, end = part.spans[first][0], part.spans[last][1]
        byte_start, byte_end = text_offsets[start], text_offsets[end]
        # Bytes within a character are known only if normalization neither made nor added it.
        if text[slice(*part.spans[first])] == part.text[first]:
            byte_start += at - offsets[first]
        at += n_bytes
        if text[slice(*part.spans[last])] == part.text[last]:
            byte_end -= offsets[last + 1] - at
        yield TokenSpan(token_id, start, end, byte_start, byte_end)
