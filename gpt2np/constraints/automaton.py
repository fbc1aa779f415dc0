"""Trees → automata over bytes, built as far as they are used.

A tree becomes a nondeterministic automaton over characters (Thompson 1968), and its states are
followed in sets (Rabin and Scott 1959), each set being a state of a deterministic automaton over
bytes. Within a character, a set also says how far each of its members is in that character's
bytes. What can't lead to a match is left out, so that every state but DEAD can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.characters import Ranges
from gpt2np.constraints.syntax import (
    Alternation,
    Concatenation,
    OneOf,
    Repetition,
    Tree,
)
from gpt2np.constraints.utf8 import END, ByteNodes
from gpt2np.errors import InvalidArgumentError

Reading = tuple[int, int]
"""A node of ByteNodes within or before a character, and the state after that character."""

DEAD = 0
"""The state after bytes that no text that matches begins with."""

MOST_CHARACTER_STATES = 50_000
MOST_BYTE_STATES = 20_000

_MATCH = 0
_MATCHED: Reading = (END, _MATCH)
_UNKNOWN = -1


class TooManyStatesError(InvalidArgumentError):
    """An automaton holds as many states as it may."""


class CharacterAutomaton:
    """The states between the characters of a text that matches.

    Attributes:
        nodes: of the bytes of characters.
        after: state → the states that are reached from it without a character.
        reads: state → a character that leads on, and the state after it; None if none does.
        start: the first state.
    """

    def __init__(self, tree: Tree) -> None:
        self.nodes = ByteNodes()
        self.after: list[tuple[int, ...]] = [()]
        self.reads: list[Reading | None] = [None]
        self._roots: dict[Ranges, int | None] = {}
        self._readings: dict[int, frozenset[Reading]] = {}
        self.start = self._before(tree, _MATCH)
        self._leading = self._leading_to_match()

    def readings(self, state: int) -> frozenset[Reading]:
        """What may be read in `state`, and _MATCHED if the text may end here."""
        if state not in self._readings:
            here = _reached(state, self.after)
            found = {self.reads[s] for s in here & self._leading}
            matched = {_MATCHED} if _MATCH in here else set()
            self._readings[state] = frozenset({read for read in found if read} | matched)
        return self._readings[state]

    def _before(self, tree: Tree, then: int) -> int:
        """The state from which `tree` leads to the state `then`."""
        if isinstance(tree, OneOf):
            if tree.characters not in self._roots:
                self._roots[tree.characters] = self.nodes.root(tree.characters)
            root = self._roots[tree.characters]
            return self._state((), None if root is None else (root, then))
        if isinstance(tree, Concatenation):
            for part in reversed(tree.parts):
                then = self._before(part, then)
            return then
        if isinstance(tree, Alternation):
            return self._state([self._before(branch, then) for branch in tree.branches])
        return self._before_repetition(tree, then)

    def _before_repetition(self, tree: Repetition, then: int) -> int:
        if tree.most is None:
            loop = self._state(())
            self.after[loop] = self._before(tree.part, loop), then
            then = loop
        else:
            end = then
            for _ in range(tree.most - tree.least):
                then = self._state((self._before(tree.part, then), end))
        for _ in range(tree.least):
            if (before := self._before(tree.part, then)) == then:
                break  # the part is nothing, however often
            then = before
        return then

    def _state(self, after: Iterable[int], read: Reading | None = None) -> int:
        if len(self.after) == MOST_CHARACTER_STATES:
            raise InvalidArgumentError(
                f"the pattern or the choices are too large: more than {MOST_CHARACTER_STATES:,} "
                "characters, repetitions written out; use smaller numbers or fewer choices"
            )
        self.after.append(tuple(after))
        self.reads.append(read)
        return len(self.after) - 1

    def _leading_to_match(self) -> set[int]:
        """The states from which _MATCH can be reached."""
        before: list[list[int]] = [[] for _ in self.after]
        for state, (after, read) in enumerate(zip(self.after, self.reads, strict=True)):
            for target in (*after, read[1]) if read else after:
                before[target].append(state)
        return _reached(_MATCH, before)


def _reached(start: int, targets: Sequence[Iterable[int]]) -> set[int]:
    """All states that `targets`, of each state, lead to from `start`, which is among them."""
    found, waiting = {start}, [start]
    while waiting:
        new = set(targets[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


class ByteAutomaton:
    """The states between the bytes of a text that matches; threads may share it.

    Attributes:
        start: the state before the first byte, DEAD if no text matches.
    """

    def __init__(self, characters: CharacterAutomaton) -> None:
        self._characters = characters
        self._readings: list[frozenset[Reading]] = []
        self._numbers: dict[frozenset[Reading], int] = {}
        self._targets = np.zeros((16, 256), np.int32)  # state, byte → state
        self._lock = Lock()
        self._number(frozenset())  # DEAD
        self.start = self._number(self._characters.readings(self._characters.start))

    @classmethod
    def of(cls, tree: Tree) -> ByteAutomaton:
        """That of the texts that match a tree."""
        return cls(CharacterAutomaton(tree))

    def emptied(self) -> ByteAutomaton:
        """One for the same texts, with room for new states; numbers of states differ."""
        return ByteAutomaton(self._characters)

    def readings(self, state: int) -> frozenset[Reading]:
        """What makes up a state, in every automaton for the same texts."""
        return self._readings[state]

    def state(self, readings: frozenset[Reading]) -> int:
        """The number of a state."""
        with self._lock:
            return self._number(readings)

    def matches(self, state: int) -> bool:
        """Whether the bytes so far are a whole text that matches."""
        return _MATCHED in self._readings[state]

    def is_complete(self, state: int) -> bool:
        """Whether they are, and no byte can follow."""
        return self._readings[state] == {_MATCHED}

    def after(self, state: int, data: bytes) -> int:
        """The state after some bytes."""
        for byte in data:
            state = int(self.step(np.array([state]), np.array([byte]))[0])
        return state

    def step(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The state after each of n states and one byte: (n,) and (n,) → (n,).

        Raises:
            TooManyStatesError: there is no room for the state.
        """
        with self._lock:
            rows = self._targets[states, data]
            unknown = rows == _UNKNOWN
            if unknown.any():
                for state in np.unique(states[unknown]).tolist():
                    self._fill(state)
                rows = self._targets[states, data]
        return rows

    def _fill(self, state: int) -> None:
        """Find the states after `state` and each byte."""
        readings, nodes = self._readings[state], self._characters.nodes
        edges = [(a, b, to, then) for node, then in readings for a, b, to in nodes.edges[node]]
        borders = sorted({0, 256, *(edge[0] for edge in edges), *(edge[1] + 1 for edge in edges)})
        for low, high in pairwise(borders):
            found = (self._arrived(to, then) for a, b, to, then in edges if a <= low <= b)
            self._targets[state, low:high] = self._number(frozenset(chain.from_iterable(found)))

    def _arrived(self, node: int, then: int) -> Iterable[Reading]:
        return self._characters.readings(then) if node == END else ((node, then),)

    def _number(self, readings: frozenset[Reading]) -> int:
        if readings in self._numbers:
            return self._numbers[readings]
        number = len(self._readings)
        if number == MOST_BYTE_STATES:
            raise TooManyStatesError(
                f"the pattern or the choices need more than {MOST_BYTE_STATES:,} states; make "
                "them simpler"
            )
        if number == len(self._targets):
            self._targets = np.concatenate([self._targets, np.zeros_like(self._targets)])
        self._targets[number] = _UNKNOWN if readings else DEAD
        self._readings.append(readings)
        self._numbers[readings] = number
        return number
