"""Compilation of syntax trees to automata over bytes, on demand.

A tree is a nondeterministic automaton (NFA) over characters. A state of the NFA is a continuation:
what is left of a subtree, and what follows the subtree (as in Thompson 1968, but made when a text
leads there). The subset construction (Rabin and Scott 1959) turns the NFA into a deterministic
automaton (DFA) over bytes. Each DFA state is a set of readings. A reading is a pair: a node, which
is a position within the next character's bytes, and the continuation after that character. A match
can be reached from every DFA state but DEAD.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.characters import END, Node
from gpt2np.constraints.syntax import (
    EMPTY,
    Alternation,
    CharacterClass,
    Concatenation,
    Repetition,
    Tree,
    WorkCounter,
)


@dataclass(frozen=True, eq=False)
class Continuation:
    """A text that must follow: the rest of a tree, and `then` what follows the tree.

    Attributes:
        n_read: how many parts of a repetition were read; 0 for other trees.
        then: None at the end of the text.
        n_bytes: the fewest bytes to a match; infinity if there is no match.
    """

    tree: Tree
    n_read: int
    then: Continuation | None
    n_bytes: float


Reading = tuple[Node, Continuation]
"""(position in the next character's bytes, what follows the character)."""

DEAD = 0
"""The ByteAutomaton state from which no match can be reached."""

# Units of work, see MAX_WORK: 100,000 continuations, or 100 readings of 2,000 states.
_CONTINUATION = 40
_FOLLOWED = 20
_STATE = 500  # for the row of targets
_READING = 10
_EDGE = 20
_PART = 10  # of a tree, when its fewest bytes are counted

_UNKNOWN = -1
_MATCH = Continuation(EMPTY, 0, None, 0)
MATCHED: Reading = (END, _MATCH)
"""The reading that marks a state in which the text may end."""


class ByteAutomaton:
    """A deterministic automaton over bytes; safe to share between threads.

    Attributes:
        start: the state before the first byte; DEAD if no text matches.
        readings: the set of NFA positions (readings) that each state stands for.
    """

    def __init__(self, tree: Tree, n_bytes: dict[int, float] | None = None) -> None:
        self._tree = tree
        self._n_bytes = n_bytes or _fewest_bytes_of_all(tree)  # id of a subtree → bytes
        self._continuations: dict[tuple[int, int, Continuation], Continuation] = {}
        self._read: dict[Continuation, tuple[Reading, ...]] = {}
        self.readings: list[frozenset[Reading]] = []
        self._states: dict[frozenset[Reading], int] = {}
        self._targets = np.zeros((16, 256), np.int32)  # state, byte → state
        self._lock = RLock()
        self._work = WorkCounter()
        self.state(frozenset())  # DEAD
        start = self._continuation(tree, _MATCH)
        self.start = self.state(frozenset(self.read(start) if start.n_bytes < math.inf else ()))

    def fresh(self) -> ByteAutomaton:
        """Return an automaton of the same tree without the states that were computed."""
        return ByteAutomaton(self._tree, self._n_bytes)

    def step(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the state after states[i] reads the byte data[i], for each i. Returns (n,).

        Raises PatternTooLargeError if the automaton is too large.
        """
        is_unknown = self._targets[states, data] == _UNKNOWN
        for state in np.unique(states[is_unknown]).tolist():
            with self._lock:
                self._compute_targets(state)
        return self._targets[states, data]

    def read(self, start: Continuation) -> tuple[Reading, ...]:
        """Return the ways to read one character of a continuation, and MATCHED if it may be empty.

        Raises PatternTooLargeError if too many consecutive parts may be empty.
        """
        if start not in self._read:
            found: dict[Reading, None] = {}  # a set in an order that is always the same
            reached, stack = {start}, [start]
            while stack:
                continuation = stack.pop()
                if continuation.then is None:
                    found[MATCHED] = None
                elif isinstance(continuation.tree, CharacterClass):
                    found[continuation.tree.node, continuation.then] = None
                else:
                    tree, n_read, then = continuation.tree, continuation.n_read, continuation.then
                    following = self._follow(tree, n_read, then)
                    new = {c: None for c in following if c.n_bytes < math.inf and c not in reached}
                    reached.update(new)
                    stack += reversed(new)
            self._work.add(_FOLLOWED * len(reached))
            self._read[start] = tuple(found)
        return self._read[start]

    def _follow(
        self, tree: Concatenation | Alternation | Repetition, n_read: int, then: Continuation
    ) -> list[Continuation]:
        """Return what a continuation stands for, one level of its tree deeper."""
        if isinstance(tree, Alternation):
            return [self._continuation(part, then) for part in tree.parts]
        if isinstance(tree, Concatenation):
            for part in reversed(tree.parts):
                then = self._continuation(part, then)
            return [then]
        found = [then] if n_read >= tree.least else []
        if n_read != tree.most:
            n_read = min(n_read + 1, tree.least) if tree.most is None else n_read + 1
            is_last = n_read == tree.most
            after = then if is_last else self._continuation(tree, then, n_read)
            found.append(self._continuation(tree.part, after))
        return found

    def _continuation(self, tree: Tree, then: Continuation, n_read: int = 0) -> Continuation:
        key = id(tree), n_read, then
        if key not in self._continuations:
            self._work.add(_CONTINUATION)
            size = _fewest_bytes(tree, self._n_bytes, n_read) if n_read else self._n_bytes[id(tree)]
            new = Continuation(tree, n_read, then, size + then.n_bytes)
            self._continuations.setdefault(key, new)
        return self._continuations[key]

    def _compute_targets(self, state: int) -> None:
        """Fill the transition table's row of a state: the next state for every byte."""
        edges = [(*edge, then) for node, then in self.readings[state] for edge in node.edges]
        self._work.add(_EDGE * len(edges))
        borders = sorted({0, 256, *(edge[0] for edge in edges), *(edge[1] + 1 for edge in edges)})
        reached: list[set[Reading]] = [set() for _ in borders[1:]]  # for the bytes between borders
        for low, high, to, then in edges:
            new = self.read(then) if to is END else ((to, then),)
            between = reached[bisect_left(borders, low) : bisect_left(borders, high + 1)]
            self._work.add(len(new) * len(between))
            for merged in between:
                merged.update(new)
        for (low, high), merged in zip(pairwise(borders), reached, strict=True):
            self._targets[state, low:high] = self.state(frozenset(merged))

    def state(self, readings: frozenset[Reading]) -> int:
        """Return the number of the state for a set of NFA positions; a new set gets a new state."""
        with self._lock:
            if readings in self._states:
                return self._states[readings]
            state = len(self.readings)
            self._work.add(_STATE + _READING * len(readings))
            if state == len(self._targets):
                self._targets = np.concatenate([self._targets, np.zeros_like(self._targets)])
            self._targets[state] = _UNKNOWN if readings else DEAD
            self.readings.append(readings)
            self._states[readings] = state
            return state


def _fewest_bytes_of_all(tree: Tree) -> dict[int, float]:
    """Return the fewest bytes that each subtree matches, by its id; a tree may contain itself."""
    subtrees: dict[int, Tree] = {}  # parts come first, so that without cycles one pass suffices
    seen, work = set[int](), WorkCounter()
    stack: list[tuple[Tree, bool]] = [(tree, False)]
    while stack:
        subtree, are_parts_done = stack.pop()
        if are_parts_done:
            subtrees[id(subtree)] = subtree
        elif id(subtree) not in seen:
            seen.add(id(subtree))
            parts = () if isinstance(subtree, CharacterClass) else subtree.parts
            work.add(_PART * len(parts))
            stack += [(subtree, True), *{id(part): (part, False) for part in parts}.values()]
    n_bytes = dict.fromkeys(subtrees, math.inf)
    before: dict[int, float] = {}
    while before != n_bytes:  # at most once for each level of the text with the fewest bytes
        before = dict(n_bytes)
        for key, subtree in subtrees.items():
            n_bytes[key] = _fewest_bytes(subtree, n_bytes)
    return n_bytes


def _fewest_bytes(tree: Tree, n_bytes: dict[int, float], n_read: int = 0) -> float:
    """Return the fewest bytes that a tree matches after `n_read` repetitions were read."""
    if isinstance(tree, CharacterClass):
        return tree.node.n_bytes
    sizes = [n_bytes[id(part)] for part in tree.parts]
    if isinstance(tree, Alternation):
        return min(sizes, default=math.inf)
    if isinstance(tree, Concatenation):
        return sum(sizes)
    n_left = tree.least - n_read
    return n_left * sizes[0] if n_left > 0 else 0


class TokenDistances:
    """The distance of each reading to a match: how many tokens of text can follow until a match.

    A state is a set of readings, so its distance is the minimum over its readings. Readings are
    fewer than states: `(a|b)*a(a|b){20}` has about 40 readings and a million states.

    The distance is an upper bound: the number of tokens of one match with the fewest bytes. Each
    byte has a token, so there is a token that reduces the distance by one.
    """

    def __init__(
        self, automaton: ByteAutomaton, tokens: Collection[bytes], prefixes: Collection[bytes]
    ) -> None:
        """Count in `tokens`, all of whose beginnings are `prefixes`."""
        self.automaton = automaton
        self._tokens, self._prefixes = tokens, prefixes
        self._distances: dict[Reading, int] = {MATCHED: 0}
        self._steps: dict[Reading, tuple[int, Reading]] = {}

    def __call__(self, reading: Reading) -> int:
        way, next_reading = [], reading
        while next_reading not in self._distances:
            way.append(next_reading)
            self._steps[next_reading] = self._step(next_reading)
            _, next_reading = self._steps[next_reading]
        for next_reading in reversed(way):
            self._distances[next_reading] = 1 + self._least_after_token(next_reading)
        return self._distances[reading]

    def _step(self, reading: Reading) -> tuple[int, Reading]:
        """Return the next byte of a match with the fewest bytes, and the reading after it."""
        node, then = reading
        byte, _, node = min(node.edges, key=lambda edge: edge[2].n_bytes)
        if node is not END:
            return byte, (node, then)
        return byte, min(self.automaton.read(then), key=lambda r: r[0].n_bytes + r[1].n_bytes)

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
