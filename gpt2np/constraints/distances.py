"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens. So is the number of tokens of any one match with the
fewest bytes, which `TokenDistances` counts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from gpt2np.constraints.automaton import MATCHED, CharacterAutomaton, Reading
from gpt2np.constraints.characters import END


class ByteDistances:
    """The least number of bytes from each reading to a match; infinity if there is no way.

    `excluded` are bytes that no text may contain.
    """

    def __init__(self, characters: CharacterAutomaton, excluded: frozenset[int]) -> None:
        self._characters = characters
        self._nodes: list[float] = [0]  # node → bytes up to the end of the character
        self._steps: list[tuple[int, int]] = [(0, END)]  # node → next byte and node on that way
        for edges in characters.nodes.edges[1:]:  # an edge leads to an earlier node
            bytes_to = ((set(range(a, b + 1)) - excluded, to) for a, b, to in edges)
            steps = [(self._nodes[to] + 1, min(codes), to) for codes, to in bytes_to if codes]
            distance, byte, to = min(steps, default=(math.inf, 0, END))
            self._nodes.append(distance)
            self._steps.append((byte, to))
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

    def __call__(self, reading: Reading) -> float:
        node, state = reading
        return self._nodes[node] + self._states[state]

    def step(self, reading: Reading) -> tuple[int, Reading]:
        """Return the next byte of a match with the fewest bytes, and the reading after it."""
        byte, node = self._steps[reading[0]]
        if node != END:
            return byte, (node, reading[1])
        return byte, min(self._characters.readings(reading[1]), key=self)


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


class TokenDistances:
    """The number of tokens from each reading to a match, for one match with the fewest bytes.

    Another match may have fewer tokens. Infinity if there is no way.
    """

    def __init__(self, tokens: Iterable[bytes], byte_distance: ByteDistances) -> None:
        self._tokens, self._byte_distance = frozenset(tokens), byte_distance
        self._prefixes = {data[:n] for data in self._tokens for n in range(1, len(data) + 1)}
        self._distances: dict[Reading, float] = {MATCHED: 0}
        self._steps: dict[Reading, tuple[int, Reading]] = {}

    def __call__(self, reading: Reading) -> float:
        if self._byte_distance(reading) == math.inf:
            return math.inf
        way = []
        while reading not in self._distances:
            way.append(reading)
            self._steps[reading] = self._byte_distance.step(reading)
            _, reading = self._steps[reading]
        for reading in reversed(way):
            self._distances[reading] = 1 + self._least_after_token(reading)
        return self._distances[way[0] if way else reading]

    def _least_after_token(self, reading: Reading) -> float:
        """Return the least distance after one token on the way from a reading."""
        least, data = math.inf, b""
        while reading != MATCHED:
            byte, reading = self._steps[reading]
            data += bytes([byte])
            if data not in self._prefixes:
                break
            if data in self._tokens:
                least = min(least, self._distances[reading])
        return least
