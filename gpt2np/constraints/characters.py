"""Sets of characters, and automata over the bytes of their UTF-8 encodings (RFC 3629, section 3).

A set is a sorted tuple of ranges (first code point, last code point). Ranges neither touch nor
overlap. Surrogates, U+D800 to U+DFFF, are in no set, because UTF-8 can't encode surrogates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import regex

Ranges = tuple[tuple[int, int], ...]

Edge = tuple[int, int, int]
"""Edge between nodes for a range of bytes: (first byte, last byte, next node)."""

END = 0
"""The node after the last byte of a character."""

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


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """Return the set of the characters that are in both sets."""
    return complement(character_set([*complement(a), *complement(b)]))


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


@dataclass
class ByteNodes:
    """A graph of automata, each of which reads one character of a set, byte by byte.

    Attributes:
        edges: the sorted edges of each node. Automata share nodes with equal edges.
    """

    edges: list[tuple[Edge, ...]] = field(default_factory=lambda: [()])
    _nodes: dict[tuple[Edge, ...], int] = field(default_factory=dict)

    def root(self, characters: Ranges) -> int:
        """Return the start node of the automaton for a set of characters that is not empty."""
        edges: list[Edge] = []
        for n_continuation in range(4):  # number of bytes after the first
            low, high = _FIRST_CODES[n_continuation], _FIRST_CODES[n_continuation + 1] - 1
            codes = [(max(a, low), min(b, high)) for a, b in characters if a <= high and b >= low]
            lead = _LEAD_BITS[n_continuation]
            edges += [(a + lead, b + lead, to) for a, b, to in self._edges(codes, n_continuation)]
        return self._node(edges)

    def _edges(self, codes: Sequence[tuple[int, int]], n_continuation: int) -> list[Edge]:
        """Return edges for the first of `n_continuation` + 1 UTF-8 bytes that encode `codes`.

        Marker bits are not included. Values share an edge if any continuation bytes may follow.
        """
        if n_continuation == 0:
            return [(a, b, END) for a, b in codes]
        size = 64**n_continuation
        edges: list[Edge] = []
        partial: dict[int, list[tuple[int, int]]] = {}  # upper bits → ranges of lower bits
        for a, b in codes:
            while a <= b:
                upper, lower = divmod(a, size)
                n_whole = (b + 1 - a) // size if lower == 0 else 0
                if n_whole:
                    tail = self._tail([(0, size - 1)], n_continuation)
                    edges.append((upper, upper + n_whole - 1, tail))
                    a += n_whole * size
                else:
                    end = min(b, (upper + 1) * size - 1)
                    partial.setdefault(upper, []).append((lower, end - upper * size))
                    a = end + 1
        edges += [(upper, upper, self._tail(c, n_continuation)) for upper, c in partial.items()]
        return sorted(edges)

    def _tail(self, codes: Sequence[tuple[int, int]], n_continuation: int) -> int:
        edges = self._edges(codes, n_continuation - 1)
        return self._node([(a + 0x80, b + 0x80, to) for a, b, to in edges])

    def _node(self, edges: list[Edge]) -> int:
        key = tuple(edges)
        if key not in self._nodes:
            self._nodes[key] = len(self.edges)
            self.edges.append(key)
        return self._nodes[key]
