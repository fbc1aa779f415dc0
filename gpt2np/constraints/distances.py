"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens. For a large pattern, so is the number of tokens of the
matches with the fewest bytes: only the readings on the way to them are needed.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import (
    MATCHED,
    ByteAutomaton,
    CharacterAutomaton,
    Reading,
    TooManyStatesError,
)
from gpt2np.constraints.characters import END
from gpt2np.constraints.trie import VocabularyTrie
from gpt2np.kernels.array import Array, IntArray

MAX_WALKED = 1_000_000  # pairs of a reading and a node of the trie, which takes about 0.3 s
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
        for state, (epsilon, reads) in enumerate(
            zip(characters.epsilon, characters.reads, strict=True)
        ):
            for node, target in (*((END, to) for to in epsilon), *reads):
                sources[target].append((state, self._nodes[node]))
        self._states = _shortest(MATCHED[1], sources)
        finite = [distance for distance in self._states if distance < math.inf]
        self.longest = math.inf if excluded else max(finite) + 4
        """No reading from which a match can be reached is farther."""

    def __call__(self, readings: Iterable[Reading]) -> list[float]:
        """Return the distance of each reading."""
        return [self._nodes[node] + self._states[state] for node, state in readings]


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


class TokenDistances:
    """The least number of tokens from each reading to a match; infinity if there is no way.

    If there are too many readings, the matches with the fewest bytes are counted, or their bytes.
    """

    def __init__(
        self,
        characters: CharacterAutomaton,
        tokens: Iterable[bytes],
        start: frozenset[Reading],
        byte_distance: ByteDistances,
    ) -> None:
        classes = byte_classes(characters)
        distinct = {data.translate(classes) for data in tokens}
        self._trie = VocabularyTrie.build(dict(enumerate(sorted(distinct))), len(distinct))
        self._characters, self._byte_distance = characters, byte_distance
        self._distances: dict[Reading, float] = {}
        self._is_exact = True
        try:
            self._add(start)
        except TooManyStatesError:
            self._is_exact = False

    def __call__(self, readings: Iterable[Reading]) -> list[float]:
        """Return the distance of each reading."""
        readings = list(readings)
        if new := frozenset(readings) - self._distances.keys():
            ordered = [] if self._is_exact else [*new]
            for i in range(0, len(ordered), _BATCH):  # each batch with an automaton of its own
                batch = ordered[i : i + _BATCH]
                try:
                    self._add(frozenset(batch) - self._distances.keys())
                except TooManyStatesError:
                    self._distances |= zip(batch, self._byte_distance(batch), strict=True)
            self._distances |= dict.fromkeys(new - self._distances.keys(), math.inf)
        return [self._distances[reading] for reading in readings]

    def _add(self, start: frozenset[Reading]) -> None:
        automaton = ByteAutomaton(self._characters)
        distance = None if self._is_exact else self._byte_distance
        self._distances |= _token_distances(automaton, self._trie, start, distance)


def _token_distances(
    automaton: ByteAutomaton,
    trie: VocabularyTrie,
    start: frozenset[Reading],
    byte_distance: ByteDistances | None,
) -> dict[Reading, float]:
    """Return the least number of tokens to a match from each reading that `start` leads to.

    With `byte_distance`, only tokens on the way to a match with the fewest bytes are counted.

    Raises:
        TooManyStatesError: the automaton or MAX_WALKED is too small.
    """
    pending, n_walked = list(start), 0
    known = set(pending)
    sources_of: dict[int, list[Reading]] = defaultdict(list)  # state → readings a token before
    while pending:
        batch, pending = pending[:_BATCH], pending[_BATCH:]
        starts = np.array([automaton.state(frozenset({r})) for r in batch], np.int32)
        most = math.inf if byte_distance else MAX_WALKED - n_walked
        for sources, nodes, states in walk(automaton, trie, starts, most, byte_distance):
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


def least_distances(
    automaton: ByteAutomaton,
    distances: Callable[[Iterable[Reading]], list[float]],
    states: NDArray[np.int32],
) -> Array:
    """Return the distance to a match of each state, (n,), from the distances of readings."""
    unique, inverse = np.unique(states, return_inverse=True)
    readings = [automaton.readings(state) for state in unique.tolist()]
    found = iter(distances(chain.from_iterable(readings)))
    least = [min(islice(found, len(of_state)), default=math.inf) for of_state in readings]
    return np.array(least, np.float32)[inverse]


def walk(
    automaton: ByteAutomaton,
    trie: VocabularyTrie,
    starts: NDArray[np.int32],
    most: float = math.inf,
    byte_distance: ByteDistances | None = None,
) -> Iterator[tuple[IntArray, IntArray, NDArray[np.int32]]]:
    """Read the trie's bytes from each of the states `starts`, level by level.

    Yields the index of the start, the node of the trie and the state at the node, (n,) each, for
    all nodes of a level that can be read. With `byte_distance`, only nodes on the way to a match
    with the fewest bytes are read.

    Raises:
        TooManyStatesError: the automaton is too large, or there are more than `most` nodes.
    """
    sources, nodes, states = np.arange(len(starts)), np.zeros(len(starts), np.int64), starts
    left = least_distances(automaton, byte_distance, starts) if byte_distance else None
    for depth, (first, parents, data) in enumerate(trie.levels, 1):
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
        if byte_distance and left is not None:
            least = least_distances(automaton, byte_distance, states[alive])
            alive = alive[least == left[sources[before[alive]]] - depth]
        if not len(alive):
            return
        sources, nodes, states = sources[before[alive]], first + children[alive], states[alive]
        yield sources, nodes, states
