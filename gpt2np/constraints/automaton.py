"""Compilation of syntax trees to automata over bytes, on demand.

A tree becomes a nondeterministic automaton (NFA) over characters (Thompson 1968). The subset
construction (Rabin and Scott 1959) turns the NFA into a deterministic automaton (DFA) over bytes.
Each DFA state is a set of readings. A reading is a pair: a node of `ByteNodes`, which is a position
within the next character's bytes, and the NFA state after that character. A match can be reached
from every DFA state but DEAD.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.aho_corasick import aho_corasick
from gpt2np.constraints.characters import END, ByteNodes, Ranges, intersection
from gpt2np.constraints.syntax import Alternation, CharacterClass, Concatenation, Repetition, Tree
from gpt2np.errors import InvalidArgumentError

Reading = tuple[int, int]
"""(node of ByteNodes, CharacterAutomaton state after the character)."""

DEAD = 0
"""The ByteAutomaton state from which no match can be reached."""

MAX_CHARACTER_STATES = 50_000
MAX_CLOSURES = 300_000  # states in the closures of all states; ranges of excluded texts
# Readings of all states of an automaton, where each state counts STATE_SIZE more for its row of
# targets. A reading takes up to 100 bytes, so an automaton takes up to 100 MB.
MAX_SIZE = 1_000_000
STATE_SIZE = 50
MAX_MERGED = 40_000_000  # readings merged to compute the states, which takes about 2 s

_MATCH = 0
_UNKNOWN = -1
MATCHED: Reading = (END, _MATCH)
"""The reading that marks a state in which the text may end."""


class TooManyStatesError(InvalidArgumentError):
    """A tree or an automaton is too large."""


class CharacterAutomaton:
    """A nondeterministic automaton (NFA) over characters, built from a regex's syntax tree.

    It accepts the texts that match the tree and contain none of the texts `excluded`.
    """

    def __init__(self, tree: Tree, excluded: Collection[str] = ()) -> None:
        self.nodes = ByteNodes()  # shared by all sets of characters
        self.epsilon: list[tuple[int, ...]] = [()]  # state → states reached without reading
        self.reads: list[tuple[Reading, ...]] = [()]  # state → readings of the next character
        self._roots: dict[Ranges, int] = {}
        self._readings: dict[int, frozenset[Reading]] = {}
        self._n_closed = 0  # see MAX_CLOSURES
        self._added: dict[tuple[int, int], int] = {}  # id of a tree, target → first state
        self.start = self._add_tree(tree, _MATCH)
        self._added.clear()  # the trees may not outlive this call
        self._live = self._find_live()
        if excluded:
            self._exclude(excluded)

    def readings(self, state: int) -> frozenset[Reading]:
        """Return the ways to read one character from a state, and MATCHED if the text may end.

        Raises TooManyStatesError if the epsilon closures have more than MAX_CLOSURES states.
        """
        if state not in self._readings:
            closure = _closure(state, self.epsilon)
            self._count(len(closure))
            matched = {MATCHED} if _MATCH in closure else set()
            reads = (self.reads[s] for s in closure & self._live)
            self._readings[state] = frozenset(matched.union(*reads))
        return self._readings[state]

    def _count(self, n: int) -> None:
        self._n_closed += n
        if self._n_closed > MAX_CLOSURES:
            raise TooManyStatesError(
                "the pattern or the schema is too large: too many consecutive parts may be empty, "
                "as in (a?){{8000}}; write a{{0,8000}}, or use smaller counts, or fewer {stop} "
                "texts",
                stop=None,
            )

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

    def _exclude(self, texts: Collection[str]) -> None:
        """Exclude the texts that contain one of `texts`.

        The new states are pairs of a state and a node of `aho_corasick`.
        """
        nodes = aho_corasick(texts, self._count)
        characters_of = {root: characters for characters, root in self._roots.items()}
        states = {(self.start, 0): self._add_state(())}  # of the pairs
        pending = [*states]

        @cache
        def steps(root: int, node: int) -> list[tuple[int, int]]:
            parts = [(intersection(c, characters_of[root]), to) for c, to in nodes[node]]
            self._count(sum(len(characters) for characters, _ in parts))
            return [(self._root(characters), to) for characters, to in parts if characters]

        for state, node in pending:  # grows
            readings, reads = self.readings(state), []
            for root, then in readings - {MATCHED}:
                for part, to in steps(root, node):
                    if (then, to) not in states:
                        states[then, to] = self._add_state(())
                        pending.append((then, to))
                    reads.append((part, states[then, to]))
            self._count(len(reads))
            self.epsilon[states[state, node]] = (_MATCH,) if MATCHED in readings else ()
            self.reads[states[state, node]] = tuple(reads)
        self.start, self._live = states[self.start, 0], self._find_live()

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
        if len(self.epsilon) == MAX_CHARACTER_STATES:
            raise TooManyStatesError(
                "the pattern, the choices or the schema are too large: more than "
                f"{MAX_CHARACTER_STATES:,} characters, with repetitions expanded; use smaller "
                "counts or fewer choices"
            )
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
        self._size = 0
        self._n_merged = 0
        self._state(frozenset())  # DEAD
        self.start = self._state(self.characters.readings(self.characters.start))

    @classmethod
    def of(cls, tree: Tree, excluded: Collection[str] = ()) -> ByteAutomaton:
        """Compile a regex's syntax tree to an automaton over bytes; see `CharacterAutomaton`."""
        return cls(CharacterAutomaton(tree, excluded))

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

    def step(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the state after states[i] reads the byte data[i], for each i. Returns (n,).

        Raises TooManyStatesError if the automaton exceeds MAX_SIZE or MAX_MERGED.
        """
        for _ in self.compute(states, data):
            pass
        return self._targets[states, data]

    def compute(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> Iterator[None]:
        """Compute what `step` needs; pause after each state, so that the caller can do other work.

        Raises TooManyStatesError if the automaton exceeds MAX_SIZE or MAX_MERGED.
        """
        is_unknown = self._targets[states, data] == _UNKNOWN
        for state in np.unique(states[is_unknown]).tolist():
            with self._lock:
                self._compute_targets(state)
            yield

    def _compute_targets(self, state: int) -> None:
        """Fill the transition table's row of a state: the next state for every byte."""
        readings, nodes = self._readings[state], self.characters.nodes
        edges = [(a, b, to, then) for node, then in readings for a, b, to in nodes.edges[node]]
        borders = sorted({0, 256, *(edge[0] for edge in edges), *(edge[1] + 1 for edge in edges)})
        reached: list[set[Reading]] = [set() for _ in borders[1:]]  # for the bytes between borders
        for low, high, to, then in edges:
            new = self.characters.readings(then) if to == END else {(to, then)}
            between = reached[bisect_left(borders, low) : bisect_left(borders, high + 1)]
            self._n_merged += len(new) * len(between)
            if self._n_merged > MAX_MERGED:
                raise self._too_large()
            for merged in between:
                merged |= new
        for (low, high), merged in zip(pairwise(borders), reached, strict=True):
            self._targets[state, low:high] = self._state(frozenset(merged))

    def _state(self, readings: frozenset[Reading]) -> int:
        if readings in self._states:
            return self._states[readings]
        state = len(self._readings)
        self._size += STATE_SIZE + len(readings)
        if self._size > MAX_SIZE:
            raise self._too_large()
        if state == len(self._targets):
            self._targets = np.concatenate([self._targets, np.zeros_like(self._targets)])
        self._targets[state] = _UNKNOWN if readings else DEAD
        self._readings.append(readings)
        self._states[readings] = state
        return state

    @staticmethod
    def _too_large() -> TooManyStatesError:
        return TooManyStatesError(
            "the pattern, the choices or the schema are too large: one token may be followed in "
            "too many ways; use smaller counts, or fewer alternatives"
        )
