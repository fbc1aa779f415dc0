"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens. So is the number of tokens of one match with the fewest
bytes, which `TokenDistances` counts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from gpt2np.constraints.automaton import MATCHED, CharacterAutomaton, Reading
from gpt2np.constraints.characters import END

_MAX_TOKEN_BYTES = 32  # of the tokens that are counted


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


class TokenDistances:
    """The number of tokens from each reading to a match, for a match with the fewest bytes.

    Another match may have fewer tokens. Infinity if there is no way.
    """

    def __init__(self, tokens: Iterable[bytes], byte_distance: ByteDistances) -> None:
        self._tokens, self._byte_distance = frozenset(tokens), byte_distance
        self._distances: dict[Reading, float] = {MATCHED: 0}

    def __call__(self, readings: Iterable[Reading]) -> list[float]:
        readings = list(readings)
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
