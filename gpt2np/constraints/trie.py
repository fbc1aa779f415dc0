"""The prefix tree of a vocabulary, which an automaton reads in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import DEAD, ByteAutomaton, Reading
from gpt2np.kernels.array import Array, IntArray

_ROOT = 0


class _Level(NamedTuple):
    """The n nodes at one depth of the prefix tree, numbered from `first` on."""

    first: int
    parents: IntArray  # (n,)
    bytes: NDArray[np.uint8]  # (n,), the byte that leads from the parent to the node


@dataclass(frozen=True)
class VocabularyTrie:
    """The prefix tree of the bytes of all tokens, which an automaton reads level by level.

    Attributes:
        levels: the nodes from depth 1 on; node 0 is the root.
        nodes: the node at which each token id ends, (V,); 0 for an id without a token.
    """

    levels: tuple[_Level, ...]
    nodes: IntArray

    @property
    def size(self) -> int:
        return self.levels[-1].first + len(self.levels[-1].bytes) if self.levels else 1

    @classmethod
    def build(cls, tokens: Mapping[int, bytes], vocab_size: int) -> VocabularyTrie:
        """Build the prefix tree of `tokens`, which maps ids below `vocab_size` to bytes."""
        joined = np.frombuffer(b"".join(tokens.values()), np.uint8)
        lengths = np.array([len(data) for data in tokens.values()], np.int64)
        starts = np.cumsum(lengths) - lengths
        current = np.zeros(len(tokens), np.int64)  # node that each token has reached
        levels: list[_Level] = []
        first = _ROOT + 1
        for depth in range(lengths.max(initial=0)):
            longer = np.flatnonzero(lengths > depth)
            keys, inverse = np.unique(
                current[longer] * 256 + joined[starts[longer] + depth], return_inverse=True
            )
            levels.append(_Level(first, keys >> 8, (keys & 255).astype(np.uint8)))
            current[longer] = first + inverse
            first += len(keys)
        nodes = np.zeros(vocab_size, np.int64)
        nodes[list(tokens)] = current
        return cls(tuple(levels), nodes)

    def distances(
        self,
        automaton: ByteAutomaton,
        readings: frozenset[Reading],
        distance: Callable[[Reading], float],
        deadline: float = math.inf,
    ) -> Array:
        """Return the distance to a match after each token id, (V,).

        The distance after a token is the least `distance` of the readings to which the token leads
        from `readings`; infinity if there are none. Raises the errors of `ByteAutomaton.step`.
        """
        states = np.zeros(self.size, np.int32)  # all DEAD
        states[_ROOT] = automaton.state(readings)
        for first, parents, data in self.levels:
            before = states[parents]
            alive = np.flatnonzero(before != DEAD)
            if not len(alive):
                break
            states[first + alive] = automaton.step(before[alive], data[alive], deadline)
        states[_ROOT] = DEAD
        reached = np.flatnonzero(np.bincount(states))
        found = np.full(reached[-1] + 1, math.inf, np.float32)
        found[reached] = [
            min(map(distance, automaton.readings(state)), default=math.inf)
            for state in reached.tolist()
        ]
        return found[states[self.nodes]]
