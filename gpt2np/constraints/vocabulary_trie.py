"""A vocabulary's tokens as a trie of bytes, through which an automaton is sent level by level."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import DEAD, ByteAutomaton

_ROOT = 0


class Level(NamedTuple):
    """The n nodes at one depth, whose numbers go up from `first`.

    Attributes:
        first: the number of the first of them.
        parents: the number of each one's parent, (n,).
        bytes: the byte that leads there from it, (n,).
    """

    first: int
    parents: NDArray[np.int64]
    bytes: NDArray[np.uint8]


@dataclass(frozen=True)
class VocabularyTrie:
    """The tree of the beginnings of all tokens; node 0 is the empty one.

    Attributes:
        levels: the nodes, from depth 1 on.
        nodes: id → the node at which its token ends, (V,); 0 for an id without a token.
    """

    levels: tuple[Level, ...]
    nodes: NDArray[np.int64]

    def allowed(self, automaton: ByteAutomaton, state: int) -> NDArray[np.bool_]:
        """For each id whether its token can follow in `state`, (V,)."""
        size = self.levels[-1].first + len(self.levels[-1].bytes) if self.levels else 1
        states = np.zeros(size, np.int32)  # all DEAD
        states[_ROOT] = state
        for first, parents, data in self.levels:
            before = states[parents]
            alive = np.flatnonzero(before != DEAD)
            if not len(alive):
                break
            states[first + alive] = automaton.step(before[alive], data[alive])
        found: NDArray[np.bool_] = states[self.nodes] != DEAD
        found[self.nodes == _ROOT] = False
        return found


def vocabulary_trie(tokens: Mapping[int, bytes], vocab_size: int) -> VocabularyTrie:
    """The trie of `tokens`, id → bytes, for a model of `vocab_size` rows, which has them all."""
    joined = np.frombuffer(b"".join(tokens.values()), np.uint8)
    lengths = np.array([len(data) for data in tokens.values()], np.int64)
    starts = np.cumsum(lengths) - lengths
    at = np.zeros(len(tokens), np.int64)  # the node that each token has come to
    levels: list[Level] = []
    first = _ROOT + 1
    for depth in range(lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > depth)
        keys, places = np.unique(
            at[longer] * 256 + joined[starts[longer] + depth], return_inverse=True
        )
        levels.append(Level(first, keys >> 8, (keys & 255).astype(np.uint8)))
        at[longer] = first + places
        first += len(keys)
    nodes = np.zeros(vocab_size, np.int64)
    nodes[list(tokens)] = at
    return VocabularyTrie(tuple(levels), nodes)
