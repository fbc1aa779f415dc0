"""Distances to a match: how many bytes or tokens a text needs until it can match.

A state of the automaton is a set of readings. A text matches if one of the readings leads to a
match, so a state's distance is the minimum over its readings. There are at most as many readings
as the pattern has bytes, whereas the number of states may be exponential.

A byte is the shortest token, and each byte has a token. So the distance in bytes, which is cheap,
is an upper bound of the distance in tokens. So is the number of tokens of a match with the fewest
bytes, which `TokenDistances` counts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from gpt2np.constraints.automaton import MATCHED, CharacterAutomaton, Reading
from gpt2np.constraints.characters import END

_MAX_WAYS = 8  # with equally many bytes, on which a token is looked for


class ByteDistances:
    """The least number of bytes from each reading to a match; infinity if there is no way.

    `excluded` are bytes that no text may contain.
    """

    def __init__(self, characters: CharacterAutomaton, excluded: frozenset[int]) -> None:
        self._characters = characters
        self._nodes: list[float] = [0]  # node → bytes up to the end of the character
        # node → next bytes and nodes on the shortest ways; one byte of each edge
        self._steps: list[list[tuple[int, int]]] = [[(0, END)]]
        for edges in characters.nodes.edges[1:]:  # an edge leads to an earlier node
            bytes_to = ((set(range(a, b + 1)) - excluded, to) for a, b, to in edges)
            steps = [(self._nodes[to] + 1, min(codes), to) for codes, to in bytes_to if codes]
            distance = min((n for n, _, _ in steps), default=math.inf)
            self._nodes.append(distance)
            self._steps.append([(byte, to) for n, byte, to in steps if n == distance])
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

    def steps(self, reading: Reading) -> list[tuple[int, Reading]]:
        """Return the next bytes of matches with the fewest bytes, and the readings after them."""
        found: list[tuple[int, Reading]] = []
        for byte, node in self._steps[reading[0]]:
            if node != END:
                found.append((byte, (node, reading[1])))
                continue
            readings = [*self._characters.readings(reading[1])]
            distances = self(readings)
            least = min(distances)
            found += [(byte, r) for r, n in zip(readings, distances, strict=True) if n == least]
        return found


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
    """The number of tokens from each reading to a match, for matches with the fewest bytes.

    Another match may have fewer tokens. Infinity if there is no way.
    """

    def __init__(self, tokens: Iterable[bytes], byte_distance: ByteDistances) -> None:
        self._tokens, self._byte_distance = frozenset(tokens), byte_distance
        self._prefixes = {data[:n] for data in self._tokens for n in range(1, len(data) + 1)}
        self._distances: dict[Reading, float] = {MATCHED: 0}
        self._steps: dict[Reading, list[tuple[int, Reading]]] = {}

    def __call__(self, readings: Iterable[Reading]) -> list[float]:
        readings = list(readings)
        finite = zip(readings, self._byte_distance(readings), strict=True)
        self._count([reading for reading, n_bytes in finite if n_bytes < math.inf])
        return [self._distances.get(reading, math.inf) for reading in readings]

    def _count(self, readings: Sequence[Reading]) -> None:
        """Count the tokens from `readings` and from all readings on the shortest ways."""
        new: set[Reading] = set()  # not those in _steps, which another thread may be counting
        pending = [*readings]
        while pending:
            reading = pending.pop()
            if reading not in self._distances and reading not in new:
                new.add(reading)
                self._steps[reading] = self._byte_distance.steps(reading)[:_MAX_WAYS]
                pending += [after for _, after in self._steps[reading]]
        for _, reading in sorted(zip(self._byte_distance(new), new, strict=True)):
            self._distances[reading] = 1 + self._least_after_token(reading)

    def _least_after_token(self, reading: Reading) -> float:
        """Return the least distance after one token on the shortest ways from a reading."""
        least, ways = math.inf, {(b"", reading)}
        while ways:
            longer = [
                (data + bytes([byte]), after)
                for data, before in ways
                if before != MATCHED
                for byte, after in self._steps[before]
            ]
            ways = {*[way for way in longer if way[0] in self._prefixes][:_MAX_WAYS]}
            ends = (self._distances[after] for data, after in ways if data in self._tokens)
            least = min([least, *ends])
        return least
