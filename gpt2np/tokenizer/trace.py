"""Origin of tokens: the characters and bytes that a token covers, and the merges that made it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from gpt2np.tokenizer.bpe import Ranks


class TokenSpan(NamedTuple):
    """Position of a token in a text, in characters and in bytes."""

    id: int
    start: int  # text[start:end] are the characters that the token covers, at least in part
    end: int
    byte_start: int  # text.encode()[byte_start:byte_end] are the bytes that the token covers
    byte_end: int


def token_spans(text: str, tokens: Iterable[tuple[int, int]]) -> Iterator[TokenSpan]:
    """Yield the position in a text of each token; `tokens` are (id, number of bytes) of all."""
    offsets = [*accumulate(map(len, map(str.encode, text)), initial=0)]  # of the characters
    byte_start = 0
    for token_id, n_bytes in tokens:
        byte_end = byte_start + n_bytes
        start, end = bisect_right(offsets, byte_start) - 1, bisect_left(offsets, byte_end)
        yield TokenSpan(token_id, start, end, byte_start, byte_end)
        byte_start = byte_end


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
