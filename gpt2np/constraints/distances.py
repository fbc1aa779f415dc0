"""Distances to a match: how many tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

The distance of a reading is an upper bound: the number of tokens of one match with the fewest
bytes. Each byte has a token, so there is a token that reduces the distance by one.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Collection

from gpt2np.constraints.automaton import MATCHED, CharacterAutomaton, Reading
from gpt2np.constraints.characters import END


class TokenDistances:
    """The number of tokens from each reading to a match, for one match with the fewest bytes.

    Another match may have fewer tokens.
    """

    def __init__(
        self,
        characters: CharacterAutomaton,
        tokens: Collection[bytes],
        prefixes: Collection[bytes],
    ) -> None:
        """Count in `tokens`, all of whose beginnings are `prefixes`."""
        self._characters = characters
        self._tokens, self._prefixes = tokens, prefixes
        self._distances: dict[Reading, int] = {MATCHED: 0}
        self._steps: dict[Reading, tuple[int, Reading]] = {}
        self._nodes = [0]  # node → bytes up to the end of the character
        self._next: list[tuple[int, int]] = [(0, END)]  # node → next byte and node on that way
        for edges in characters.nodes.edges[1:]:  # an edge leads to an earlier node
            distance, byte, to = min((self._nodes[to] + 1, first, to) for first, _, to in edges)
            self._nodes.append(distance)
            self._next.append((byte, to))
        sources: list[list[tuple[int, int]]] = [[] for _ in characters.epsilon]
        for state, (epsilon, reads) in enumerate(
            zip(characters.epsilon, characters.reads, strict=True)
        ):
            for node, target in (*((END, to) for to in epsilon), *reads):
                sources[target].append((state, self._nodes[node]))
        self._states = _shortest(MATCHED[1], sources)

    def __call__(self, reading: Reading) -> int:
        way, next_reading = [], reading
        while next_reading not in self._distances:
            way.append(next_reading)
            self._steps[next_reading] = self._step(next_reading)
            _, next_reading = self._steps[next_reading]
        for next_reading in reversed(way):
            self._distances[next_reading] = 1 + self._least_after_token(next_reading)
        return self._distances[reading]

    def _n_bytes(self, reading: Reading) -> float:
        """Return the least number of bytes from a reading to a match."""
        node, state = reading
        return self._nodes[node] + self._states[state]

    def _step(self, reading: Reading) -> tuple[int, Reading]:
        """Return the next byte of a match with the fewest bytes, and the reading after it."""
        byte, node = self._next[reading[0]]
        if node != END:
            return byte, (node, reading[1])
        return byte, min(self._characters.readings(reading[1]), key=self._n_bytes)

    def _least_after_token(self, reading: Reading) -> int:
        """Return the least distance after one token on the way from a reading."""
        least, data = sys.maxsize, b""
        while reading != MATCHED:
            byte, reading = self._steps[reading]
            data += bytes([byte])
            if data not in self._prefixes:
                break
            if data in self._tokens:
                least = min(least, self._distances[reading])
        return least


def _shortest(target: int, sources: list[list[tuple[int, int]]]) -> list[float]:
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
