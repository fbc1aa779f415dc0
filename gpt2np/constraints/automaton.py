"""Compilation of syntax trees to automata over bytes, on demand.

A tree becomes a nondeterministic automaton (NFA) over characters (Thompson 1968). The subset
construction (Rabin and Scott 1959) turns the NFA into a deterministic automaton (DFA) over bytes.
Each DFA state is a set of readings. A reading is a pair: a node of `ByteNodes`, which is a position
within the next character's bytes, and the NFA state after that character. A match can be reached
from every DFA state but DEAD.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.characters import END, ByteNodes, Ranges
from gpt2np.constraints.syntax import (
    Alternation,
    CharacterClass,
    Concatenation,
    Repetition,
    Tree,
    WorkCounter,
)

Reading = tuple[int, int]
"""(node of ByteNodes, CharacterAutomaton state after the character)."""

DEAD = 0
"""The ByteAutomaton state from which no match can be reached."""

# Units of work, see MAX_WORK: 50,000 states over characters, or 10,000 readings of 1,000 states.
_CHARACTER_STATE = 200
_CLOSED_STATE = 30
_STATE = 500  # for the row of targets
_READING = 10

_MATCH = 0
_UNKNOWN = -1
MATCHED: Reading = (END, _MATCH)
"""The reading that marks a state in which the text may end."""


class CharacterAutomaton:
    """A nondeterministic automaton (NFA) over characters, built from a regex's syntax tree.

    Raises PatternTooLargeError if the tree is too large.
    """

    def __init__(self, tree: Tree) -> None:
        self._work, self._closed = WorkCounter(), WorkCounter()
        self.nodes = ByteNodes()  # shared by all sets of characters
        self.epsilon: list[tuple[int, ...]] = [()]  # state → states reached without reading
        self.reads: list[tuple[Reading, ...]] = [()]  # state → readings of the next character
        self._roots: dict[Ranges, int] = {}
        self._readings: dict[int, frozenset[Reading]] = {}
        self._added: dict[tuple[int, int], int] = {}  # id of a tree, target → first state
        self.start = self._add_tree(tree, _MATCH)
        self._added.clear()  # the trees may not outlive this call
        self._live = self._find_live()

    def readings(self, state: int) -> frozenset[Reading]:
        """Return the ways to read one character from a state, and MATCHED if the text may end.

        Raises PatternTooLargeError if too many consecutive parts may be empty.
        """
        if state not in self._readings:
            closure = _closure(state, self.epsilon)
            self._closed.add(_CLOSED_STATE * len(closure))
            matched = {MATCHED} if _MATCH in closure else set()
            reads = (self.reads[s] for s in closure & self._live)
            self._readings[state] = frozenset(matched.union(*reads))
        return self._readings[state]

    def _find_live(self) -> set[int]:
        """Return the states from which _MATCH can be reached."""
        sources: list[list[int]] = [[] for _ in self.epsilon]
        for state, (epsilon, reads) in enumerate(zip(self.epsilon, self.reads, strict=True)):
            for target in (*epsilon, *(then for _, then in reads)):
                sources[target].append(state)
        return _closure(_MATCH, sources)

    def _add_tree(self, tree: Tree, target: int) -> int:
        """Return the first of the states that match `tree` and lead to the state `target`.

        New states are added once for a tree and a target, so parts of a tree can share them.
        """
        key = id(tree), target
        if key not in self._added:
            self._added[key] = self._new_states(tree, target)
        return self._added[key]

    def _new_states(self, tree: Tree, target: int) -> int:
        if isinstance(tree, CharacterClass):
            characters = tree.characters
            return self._add_state((), ((self._root(characters), target),) if characters else ())
        if isinstance(tree, Concatenation):
            for part in reversed(tree.parts):
                target = self._add_tree(part, target)
            return target
        if isinstance(tree, Alternation):
            return self._add_state([self._add_tree(branch, target) for branch in tree.branches])
        return self._add_repetition(tree, target)

    def _root(self, characters: Ranges) -> int:
        """Return the node before a character of a set that is not empty."""
        if characters not in self._roots:
            self._roots[characters] = self.nodes.root(characters)
        return self._roots[characters]

    def _add_repetition(self, tree: Repetition, target: int) -> int:
        if tree.most is None:
            loop = self._add_state(())
            self.epsilon[loop] = self._add_tree(tree.part, loop), target
            target = loop
        else:
            end = target
            for _ in range(tree.most - tree.least):
                target = self._add_state((self._add_tree(tree.part, target), end))
        for _ in range(tree.least):
            if (state := self._add_tree(tree.part, target)) == target:
                break  # the part matches only the empty text
            target = state
        return target

    def _add_state(self, epsilon: Iterable[int], reads: tuple[Reading, ...] = ()) -> int:
        self._work.add(_CHARACTER_STATE)
        self.epsilon.append(tuple(epsilon))
        self.reads.append(reads)
        return len(self.epsilon) - 1


def _closure(start: int, targets: Sequence[Iterable[int]]) -> set[int]:
    """Return `start` and all states reached from it; targets[s] lists the successors of state s."""
    reached, stack = {start}, [start]
    while stack:
        new = set(targets[stack.pop()]) - reached
        reached |= new
        stack += new
    return reached


class ByteAutomaton:
    """A deterministic automaton over bytes; safe to share between threads.

    Attributes:
        characters: the source NFA, over characters.
        start: the state before the first byte; DEAD if no text matches.
    """

    def __init__(self, characters: CharacterAutomaton) -> None:
        self.characters = characters
        self._readings: list[frozenset[Reading]] = []
        self._states: dict[frozenset[Reading], int] = {}
        self._targets = np.zeros((16, 256), np.int32)  # state, byte → state
        self._lock = Lock()
        self._work = WorkCounter()
        self._state(frozenset())  # DEAD
        self.start = self._state(self.characters.readings(self.characters.start))

    @classmethod
    def of(cls, tree: Tree) -> ByteAutomaton:
        """Compile a regex's syntax tree to an automaton over bytes."""
        return cls(CharacterAutomaton(tree))

    def readings(self, state: int) -> frozenset[Reading]:
        """Return the set of NFA positions (readings) that a state of this automaton stands for."""
        return self._readings[state]

    def state(self, readings: frozenset[Reading]) -> int:
        """Return the number of the state for a set of NFA positions; a new set gets a new state."""
        with self._lock:
            return self._state(readings)

    def after(self, state: int, data: bytes) -> int:
        """Return the state that is reached from `state` by the bytes `data`."""
        for byte in data:
            state = int(self.step(np.array([state]), np.array([byte]))[0])
        return state

    def step(
        self, states: NDArray[np.int32], data: NDArray[np.uint8], deadline: float = math.inf
    ) -> NDArray[np.int32]:
        """Return the state after states[i] reads the byte data[i], for each i. Returns (n,).

        Raises PatternTooLargeError if the automaton is too large, and TimeoutError at a `deadline`
        of `time.perf_counter()`; a later call goes on from the states that were computed.
        """
        is_unknown = self._targets[states, data] == _UNKNOWN
        for state in np.unique(states[is_unknown]).tolist():
            with self._lock:
                self._compute_targets(state)
            if time.perf_counter() > deadline:
                raise TimeoutError
        return self._targets[states, data]

    def _compute_targets(self, state: int) -> None:
        """Fill the transition table's row of a state: the next state for every byte."""
        readings, nodes = self._readings[state], self.characters.nodes
        edges = [(a, b, to, then) for node, then in readings for a, b, to in nodes.edges[node]]
        borders = sorted({0, 256, *(edge[0] for edge in edges), *(edge[1] + 1 for edge in edges)})
        reached: list[set[Reading]] = [set() for _ in borders[1:]]  # for the bytes between borders
        for low, high, to, then in edges:
            new = self.characters.readings(then) if to == END else {(to, then)}
            between = reached[bisect_left(borders, low) : bisect_left(borders, high + 1)]
            self._work.add(len(new) * len(between))
            for merged in between:
                merged |= new
        for (low, high), merged in zip(pairwise(borders), reached, strict=True):
            self._targets[state, low:high] = self._state(frozenset(merged))

    def _state(self, readings: frozenset[Reading]) -> int:
        if readings in self._states:
            return self._states[readings]
        state = len(self._readings)
        self._work.add(_STATE + _READING * len(readings))
        if state == len(self._targets):
            self._targets = np.concatenate([self._targets, np.zeros_like(self._targets)])
        self._targets[state] = _UNKNOWN if readings else DEAD
        self._readings.append(readings)
        self._states[readings] = state
        return state
