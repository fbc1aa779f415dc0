"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens. For a large pattern, so is the number of tokens of one
match with the fewest bytes.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from threading import Lock

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
from gpt2np.kernels.array import IntArray

MAX_WALKED = 1_000_000  # pairs of a reading and a node of the trie, which takes about 0.3 s
_MAX_TOKEN_BYTES = 32  # of the tokens that are counted in a large pattern
_BATCH = 64  # readings that are walked together; bounds the memory
_STATES = 1 << 32  # above every state number


class ByteDistances:
    """The least number of bytes from each reading to a match; infinity if there is no way.

    `excluded` are bytes that no text may contain.
    """

    def __init__(self, characters: CharacterAutomaton, excluded: frozenset[int]) -> None:
        self._characters = characters
        self._nodes: list[float] = [0]  # node → bytes up to the end of the character
        self._steps: list[tuple[int, int]] = [(0, END)]  # node → next byte and node on this way
        for edges in characters.nodes.edges[1:]:  # an edge leads to an earlier node
            bytes_to = ((set(range(a, b + 1)) - excluded, to) for a, b, to in edges)
            steps = [(self._nodes[to] + 1, min(codes), to) for codes, to in bytes_to if codes]
            distance, *step = min(steps, default=(math.inf, 0, END))
            self._nodes.append(distance)
            self._steps.append((step[0], step[1]))
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
        return [self._nodes[node] + self._states[state] for node, state in readings]

    def step(self, reading: Reading) -> tuple[int, Reading]:
        """Return the next byte of a match with the fewest bytes, and the reading after it."""
        byte, node = self._steps[reading[0]]
        if node != END:
            return byte, (node, reading[1])
        readings = self._characters.readings(reading[1])
        return byte, min(zip(self(readings), readings, strict=True))[1]


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

    If there are too many readings, the tokens of one match with the fewest bytes are counted.
    """

    def __init__(
        self,
        characters: CharacterAutomaton,
        tokens: Iterable[bytes],
        start: frozenset[Reading],
        byte_distance: ByteDistances,
    ) -> None:
        self._tokens, self._byte_distance = frozenset(tokens), byte_distance
        self._distances: dict[Reading, float] = {MATCHED: 0}
        self.is_exact: bool | None = None  # None until the tokens are counted
        self._characters, self._start = characters, start
        self._work, self._lock = self._count_all(), Lock()

    def prepare(self) -> Iterator[None]:
        """Count the tokens, with pauses; sequences share the work."""
        while self.is_exact is None:
            with self._lock:
                if self.is_exact is None and next(self._work, True):  # also after an exception
                    self._work = self._count_all()
            yield

    def _count_all(self) -> Iterator[None]:
        classes = byte_classes(self._characters)
        distinct = {data.translate(classes) for data in self._tokens}
        trie = VocabularyTrie.build(dict(enumerate(sorted(distinct))), len(distinct))
        automaton = ByteAutomaton(self._characters)
        try:
            self._distances = yield from _token_distances(automaton, trie, self._start)
            self.is_exact = True
        except TooManyStatesError:
            self.is_exact = False

    def __call__(self, readings: Iterable[Reading]) -> list[float]:
        readings = list(readings)
        for _ in self.prepare():
            pass
        if not self.is_exact:
            for reading, n_bytes in zip(readings, self._byte_distance(readings), strict=True):
                if n_bytes < math.inf and reading not in self._distances:
                    self._count_tokens(reading)
        return [self._distances.get(reading, math.inf) for reading in readings]

    def _count_tokens(self, reading: Reading) -> None:
        """Count the tokens of a match with the fewest bytes, from each reading on its way."""
        data, path, n_known = b"", [reading], 0
        while path[-1] != MATCHED and n_known < _MAX_TOKEN_BYTES:
            byte, after = self._byte_distance.step(path[-1])
            data += bytes([byte])
            path.append(after)
            n_known += after in self._distances
        for i in reversed(range(len(data))):
            if path[i] not in self._distances:
                lengths = range(1, min(_MAX_TOKEN_BYTES, len(data) - i) + 1)
                tokens = (n for n in lengths if data[i : i + n] in self._tokens)
                self._distances[path[i]] = 1 + min(self._distances[path[i + n]] for n in tokens)


def _token_distances(
    automaton: ByteAutomaton, trie: VocabularyTrie, start: frozenset[Reading]
) -> Generator[None, None, dict[Reading, float]]:
    """Count the least tokens to a match from each reading that `start` leads to, with pauses.

    Raises TooManyStatesError if the automaton or MAX_WALKED is too small.
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
            yield
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
    automaton: ByteAutomaton,
    trie: VocabularyTrie,
    starts: NDArray[np.int32],
    most: float = math.inf,
) -> Iterator[tuple[IntArray, IntArray, NDArray[np.int32]]]:
    """Read the trie's bytes from each of the states `starts`, level by level.

    Yields, for the n nodes of a level that can be read, (n,) each: the index of the start, the node
    of the trie, and the state at the node. Raises TooManyStatesError if the automaton is too large,
    or there are more than `most` nodes.
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
