"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import (
    MATCHED,
    ByteAutomaton,
    CharacterAutomaton,
    Reading,
    TooManyStatesError,
)
from gpt2np.constraints.trie import VocabularyTrie
from gpt2np.kernels.array import IntArray

MAX_WALKED = 20_000_000  # pairs of a reading and a node of the trie, which takes about 2 s
_BATCH = 64  # readings that are walked together; bounds the memory
_STATES = 1 << 32  # above every state number


class ByteDistances:
    """The least number of bytes from each reading to a match; infinity if there is no way.

    `excluded` are bytes that no text may contain.
    """

    def __init__(self, characters: CharacterAutomaton, excluded: frozenset[int]) -> None:
        self._nodes: list[float] = []  # node → bytes up to the end of the character
        for edges in characters.nodes.edges:  # an edge leads to an earlier node
            targets = [to for a, b, to in edges if not excluded.issuperset(range(a, b + 1))]
            least = min((1 + self._nodes[to] for to in targets), default=math.inf)
            self._nodes.append(least if self._nodes else 0)
        sources: list[list[tuple[int, float]]] = [[] for _ in characters.epsilon]
        for state, (targets_of, read) in enumerate(
            zip(characters.epsilon, characters.reads, strict=True)
        ):
            for target in targets_of:
                sources[target].append((state, 0))
            if read:
                sources[read[1]].append((state, self._nodes[read[0]]))
        self._states = _shortest(MATCHED[1], sources)
        finite = [distance for distance in self._states if distance < math.inf]
        self.longest = math.inf if excluded else max(finite) + 4
        """No reading from which a match can be reached is farther."""

    def __call__(self, reading: Reading) -> float:
        node, state = reading
        return self._nodes[node] + self._states[state]


def _shortest(target: int, sources: list[list[tuple[int, float]]]) -> list[float]:
    """Return each state's distance to `target` (Dijkstra); sources[s] lists (state, length)."""
    distances = [math.inf] * len(sources)
    distances[target] = 0
    queue: list[tuple[float, int]] = [(0, target)]
    while queue:
        distance, state = heapq.heappop(queue)
        if distance > distances[state]:
            continue
        for source, length in sources[state]:
            if distance + length < distances[source]:
                distances[source] = distance + length
                heapq.heappush(queue, (distance + length, source))
    return distances


def byte_classes(characters: CharacterAutomaton) -> bytes:
    """Return a table for `bytes.translate` that maps bytes with equal edges to one of them."""
    edges = [edge for edges in characters.nodes.edges for edge in edges]
    borders = np.zeros(257, bool)
    borders[[0, *(a for a, _, _ in edges), *(b + 1 for _, b, _ in edges)]] = True
    return np.maximum.accumulate(np.where(borders, np.arange(257), 0))[:256].astype("u1").tobytes()


def token_distances(
    automaton: ByteAutomaton, trie: VocabularyTrie, start: frozenset[Reading]
) -> Mapping[Reading, float]:
    """Return the least number of tokens to a match from each reading that `start` leads to.

    `trie` may hold one token of each class of `byte_classes`.

    Raises:
        TooManyStatesError: the automaton or MAX_WALKED is too small.
    """
    pending, n_walked = list(start), 0
    known = set(pending)
    sources_of: dict[int, list[Reading]] = defaultdict(list)  # state → readings a token before
    while pending:
        batch, pending = pending[:_BATCH], pending[_BATCH:]
        starts = np.array([automaton.state(frozenset({r})) for r in batch], np.int32)
        for sources, nodes, states in walk(automaton, trie, starts, MAX_WALKED - n_walked):
            n_walked += len(nodes)
            is_token = trie.is_token[nodes]
            for pair in np.unique(sources[is_token] * _STATES + states[is_token]).tolist():
                source, state = divmod(pair, _STATES)
                if state not in sources_of:
                    new = automaton.readings(state) - known
                    known |= new
                    pending += new
                sources_of[state].append(batch[source])
    states_of: dict[Reading, list[int]] = defaultdict(list)
    for state in sources_of:
        for reading in automaton.readings(state):
            states_of[reading].append(state)
    distances: dict[Reading, float] = {MATCHED: 0.0}
    queue = [MATCHED]
    for reading in queue:  # breadth first
        for state in states_of.pop(reading, ()):
            for source in sources_of.pop(state, ()):
                if source not in distances:
                    distances[source] = distances[reading] + 1
                    queue.append(source)
    return distances


def walk(
    automaton: ByteAutomaton, trie: VocabularyTrie, starts: NDArray[np.int32], most: float
) -> Iterator[tuple[IntArray, IntArray, NDArray[np.int32]]]:
    """Read the trie's bytes from each of the states `starts`, level by level.

    Yields the index of the start, the node of the trie and the state at the node, (n,) each, for
    all nodes of a level that can be read.

    Raises:
        TooManyStatesError: the automaton is too large, or there are more than `most` nodes.
    """
    sources, nodes, states = np.arange(len(starts)), np.zeros(len(starts), np.int64), starts
    for first, parents, data in trie.levels:
        low = np.searchsorted(parents, nodes)
        counts = np.searchsorted(parents, nodes, "right") - low
        total = int(counts.sum())
        most -= total
        if most < 0:
            raise TooManyStatesError("the pattern is too large")
        before = np.repeat(np.arange(len(nodes)), counts)
        children = np.arange(total) + np.repeat(low - np.cumsum(counts) + counts, counts)
        states = automaton.step(states[before], data[children])
        alive = np.flatnonzero(states)
        if not len(alive):
            return
        sources, nodes, states = sources[before[alive]], first + children[alive], states[alive]
        yield sources, nodes, states
