"""Sets of characters, and automata over the bytes of their UTF-8 encodings (RFC 3629, section 3).

A set is a sorted tuple of ranges (first code point, last code point). Ranges neither touch nor
overlap. Surrogates, U+D800 to U+DFFF, are in no set, because UTF-8 can't encode surrogates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_FIRST_CODES = (0, 0x80, 0x800, 0x10000, 0x110000)  # first code point of 1, 2, 3, 4, 5 bytes
_LEAD_BITS = (0, 0xC0, 0xE0, 0xF0)  # bits of the first byte that mark 1, 2, 3, 4 bytes


def character_set(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges of code points as a set, without surrogates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    below, above = _SURROGATES[0] - 1, _SURROGATES[1] + 1
    parts = [part for a, b in merged for part in ((a, min(b, below)), (max(a, above), b))]
    return tuple((a, b) for a, b in parts if a <= b)


def complement(characters: Ranges) -> Ranges:
    """Return the set of all characters that are not in `characters`."""
    starts = [0, *(last + 1 for _, last in characters)]
    ends = [*(first - 1 for first, _ in characters), _LAST]
    return character_set((a, b) for a, b in zip(starts, ends, strict=True) if a <= b)


@lru_cache(maxsize=64)
def characters_of(escape: str) -> Ranges:
    r"""Return the characters that an escape such as \w or \p{Greek} matches in the `regex` package.

    Raises regex.error if the property does not exist.
    """
    matches = regex.compile(f"{escape}+").finditer(_all_characters())
    return character_set((match.start(), match.end() - 1) for match in matches)


@lru_cache(maxsize=1)
def _all_characters() -> str:
    return "".join(map(chr, range(_LAST + 1)))


def split(low: int, high: int, unit: int) -> list[tuple[int, int, int, int]]:
    """Split the integers from `low` to `high` into ranges of quotients and remainders by `unit`.

    Returns ranges (first, last, least, most): each quotient from `first` to `last` with each
    remainder from `least` to `most`.
    """
    if low > high:
        return []
    (first, least), (last, most) = divmod(low, unit), divmod(high, unit)
    if first < last and least > 0:
        border = (first + 1) * unit
    elif first < last and most < unit - 1:
        border = last * unit
    else:
        return [(first, last, least, most)]
    return [*split(low, border - 1, unit), *split(border, high, unit)]


@dataclass(frozen=True, eq=False)
class Node:
    """A place within the UTF-8 bytes of a character.

    Attributes:
        edges: sorted ranges of the bytes that may follow, as (first byte, last byte, next node).
        n_bytes: the fewest bytes to the end of a character; infinity if no byte may follow.
    """

    edges: tuple[tuple[int, int, Node], ...]
    n_bytes: float


END = Node((), 0)
"""The node after the last byte of a character."""


@lru_cache(256)
def first_node(characters: Ranges) -> Node:
    """Return the node before the first byte of a character of a set."""
    edges: list[tuple[int, int, Node]] = []
    for n_continuation, lead in enumerate(_LEAD_BITS):  # number of bytes after the first
        low, high = _FIRST_CODES[n_continuation], _FIRST_CODES[n_continuation + 1] - 1
        codes = [(max(a, low), min(b, high)) for a, b in characters if a <= high and b >= low]
        edges += [(a + lead, b + lead, to) for a, b, to in _edges(codes, n_continuation)]
    return _node(tuple(edges))


def _edges(codes: Sequence[tuple[int, int]], n_continuation: int) -> list[tuple[int, int, Node]]:
    """Return edges for the first of `n_continuation` + 1 UTF-8 bytes that encode `codes`.

    Marker bits are not included. Values share an edge if any continuation bytes may follow.
    """
    if n_continuation == 0:
        return [(a, b, END) for a, b in codes]
    tails: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for low, high in codes:
        for first, last, least, most in split(low, high, 64**n_continuation):
            tails.setdefault((first, last), []).append((least, most))
    edges = []
    for (first, last), codes in sorted(tails.items()):
        tail = tuple((a + 0x80, b + 0x80, to) for a, b, to in _edges(codes, n_continuation - 1))
        edges.append((first, last, _node(tail)))
    return edges


@lru_cache(1 << 14)  # characters and sets share nodes
def _node(edges: tuple[tuple[int, int, Node], ...]) -> Node:
    return Node(edges, min((1 + to.n_bytes for _, _, to in edges), default=math.inf))
