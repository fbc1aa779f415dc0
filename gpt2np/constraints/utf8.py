"""Sets of characters → automata over the bytes of their UTF-8 encodings (RFC 3629, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt2np.constraints.characters import Ranges

Edge = tuple[int, int, int]
"""First byte, last byte, and the node after it."""

END = 0
"""The node at which a character is complete."""

_FIRST_CODES = (0, 0x80, 0x800, 0x10000, 0x110000)  # the first of 1, 2, 3, 4 and 5 bytes
_LEADS = (0, 0xC0, 0xE0, 0xF0)  # what the first of 1, 2, 3, 4 bytes has beside bits of the code


@dataclass
class ByteNodes:
    """Nodes of automata that read one character, shared by all sets of characters.

    Attributes:
        edges: number of a node → its edges in rising order. Nodes with equal edges are one.
    """

    edges: list[tuple[Edge, ...]] = field(default_factory=lambda: [()])
    _numbers: dict[tuple[Edge, ...], int] = field(default_factory=dict)

    def root(self, characters: Ranges) -> int | None:
        """The node before a character of the set; None if the set is empty."""
        edges: list[Edge] = []
        for length in range(4):  # of continuation bytes
            low, high = _FIRST_CODES[length], _FIRST_CODES[length + 1] - 1
            within = [(max(a, low), min(b, high)) for a, b in characters if a <= high and b >= low]
            lead = _LEADS[length]
            edges += [(a + lead, b + lead, to) for a, b, to in self._edges(within, length)]
        return self._number(edges) if edges else None

    def _edges(self, codes: Sequence[tuple[int, int]], length: int) -> list[Edge]:
        """Edges for the bits above those of `length` continuation bytes.

        codes: sorted ranges. Each byte that all its codes follow goes to one shared node, any other
        to the node of those that do.
        """
        if length == 0:
            return [(a, b, END) for a, b in codes]
        size = 64**length
        edges: list[Edge] = []
        partial: dict[int, list[tuple[int, int]]] = {}  # upper bits → the lower bits allowed
        for a, b in codes:
            while a <= b:
                upper, lower = divmod(a, size)
                whole = (b + 1 - a) // size if lower == 0 else 0
                if whole:
                    edges.append((upper, upper + whole - 1, self._tail([(0, size - 1)], length)))
                    a += whole * size
                else:
                    end = min(b, (upper + 1) * size - 1)
                    partial.setdefault(upper, []).append((lower, end - upper * size))
                    a = end + 1
        edges += [(upper, upper, self._tail(some, length)) for upper, some in partial.items()]
        return sorted(edges)

    def _tail(self, codes: Sequence[tuple[int, int]], length: int) -> int:
        edges = self._edges(codes, length - 1)
        return self._number([(a + 0x80, b + 0x80, to) for a, b, to in edges])

    def _number(self, edges: list[Edge]) -> int:
        key = tuple(edges)
        if key not in self._numbers:
            self._numbers[key] = len(self.edges)
            self.edges.append(key)
        return self._numbers[key]
