"""Origin of tokens: the characters and bytes that a token covers, and the merges that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

from gpt2np.tokenizer.bpe import Ranks
from gpt2np.tokenizer.normalizer import NormalizedPart


class TokenSpan(NamedTuple):
    """Position of a token in a text, in characters and in bytes."""

    id: int
    start: int  # text[start:end] are the characters that the token covers, at least in part
    end: int
    byte_start: int  # text.encode()[byte_start:byte_end] are the bytes that the token covers
    byte_end: int


def char_byte_offsets(text: str) -> list[int]:
    """Return the UTF-8 offset of each character of `text`, then the length of `text` in bytes."""
    if text.isascii():
        return list(range(len(text) + 1))
    lengths = (len(character.encode("utf-8", "surrogateescape")) for character in text)
    return list(accumulate(lengths, initial=0))


def part_offsets(
    part: NormalizedPart, tokens: Iterable[tuple[int, int]], text: str, text_offsets: Sequence[int]
) -> Iterator[TokenSpan]:
    """Yield the position in the original `text` of each token of the normalized `part`.

    `tokens` has (id, number of bytes) for each token. `text_offsets` is `char_byte_offsets(text)`.
    """
    offsets = char_byte_offsets(part.text)
    lengths = (end - start for start, end in pairwise(offsets))
    char_at_byte = list(chain.from_iterable(map(repeat, range(len(part.text)), lengths)))
    byte_offset = 0
    for token_id, n_bytes in tokens:
        first, last = char_at_byte[byte_offset], char_at_byte[byte_offset + n_bytes - 1]
        start, end = part.spans[first][0], part.spans[last][1]
        byte_start, byte_end = text_offsets[start], text_offsets[end]
        # If normalization changed a character, the token's share of its bytes is unknown.
        if text[slice(*part.spans[first])] == part.text[first]:
            byte_start += byte_offset - offsets[first]
        byte_offset += n_bytes
        if text[slice(*part.spans[last])] == part.text[last]:
            byte_end -= offsets[last + 1] - byte_offset
        yield TokenSpan(token_id, start, end, byte_start, byte_end)


@dataclass(frozen=True)
class MergeStep:
    """The tokens of a piece of text before a merge, or after the last merge."""

    tokens: tuple[str, ...]  # spelled as in `Vocabulary.ids`
    ranks: tuple[int | None, ...]  # rank of each pair of neighbors; None if no merge joins them
    # index of the next pair to merge: the leftmost pair with the lowest rank; None at the end
    chosen: int | None


@dataclass(frozen=True)
class MergeTrace:
    """The merges that turn a piece of text into token ids."""

    text: str  # the piece
    # from single bytes or characters to the final tokens; empty if the piece is a token itself
    steps: tuple[MergeStep, ...]
    ids: tuple[int, ...]


def merge_steps(tokens: list[str], ranks: Ranks) -> tuple[MergeStep, ...]:
    """Return the steps of `merge_pairs(tokens, ranks)`; the last step holds the final tokens."""
    steps = []
    while True:
        pair_ranks = [ranks.get(f"{left} {right}") for left, right in pairwise(tokens)]
        known = [rank for rank in pair_ranks if rank is not None]
        chosen = pair_ranks.index(min(known)) if known else None
        steps.append(MergeStep(tuple(tokens), tuple(pair_ranks), chosen))
        if chosen is None:
            return tuple(steps)
        merged = tokens[chosen] + tokens[chosen + 1]
        tokens = [*tokens[:chosen], merged, *tokens[chosen + 2 :]]
