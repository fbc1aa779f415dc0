"""Which characters and bytes of a text each token came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

from gpt2np.tokenizer.parts import Part


class TokenSpan(NamedTuple):
    """A token's place in a text.

    Attributes:
        id: the token's id.
        start, end: text[start:end] are the characters of which it holds at least a byte.
        byte_start, byte_end: its own bytes in the text's UTF-8.
    """

    id: int
    start: int
    end: int
    byte_start: int
    byte_end: int


def byte_starts(text: str) -> list[int]:
    """For each character of `text` the byte of its UTF-8 where it begins, and last the length."""
    if text.isascii():
        return list(range(len(text) + 1))
    lengths = (len(character.encode("utf-8", "surrogateescape")) for character in text)
    return list(accumulate(lengths, initial=0))


def spans_of_part(
    part: Part, tokens: Iterable[tuple[int, int]], text: str, text_starts: Sequence[int]
) -> Iterator[TokenSpan]:
    """The spans of the tokens of `part`.

    Args:
        part: part of `text`, with spans.
        tokens: (id, number of bytes) of each of its tokens.
        text: the whole text.
        text_starts: its `byte_starts`.
    """
    starts = byte_starts(part.text)
    lengths = (end - start for start, end in pairwise(starts))
    character_at = list(chain.from_iterable(map(repeat, range(len(part.text)), lengths)))
    at = 0
    for number, length in tokens:
        first, last = character_at[at], character_at[at + length - 1]
        start, end = part.spans[first][0], part.spans[last][1]
        byte_start, byte_end = text_starts[start], text_starts[end]
        # Within a character that normalization made, or that was put in front, no byte is known.
        if text[slice(*part.spans[first])] == part.text[first]:
            byte_start += at - starts[first]
        at += length
        if text[slice(*part.spans[last])] == part.text[last]:
            byte_end -= starts[last + 1] - at
        yield TokenSpan(number, start, end, byte_start, byte_end)
