"""The prefix tree of a vocabulary, which an automaton reads in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import DEAD, ByteAutomaton, Reading
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import IntArray

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer

_UTF8_BYTES = {*range(0xC0), *range(0xC2, 0xF5)}  # all bytes that occur in UTF-8


class VocabularyTrie:
    """The prefix tree of the tokens that are text: not special, and with an embedding.

    Node 0 is the root. The nodes of a level have successive numbers.

    Attributes:
        ends: the ids that end a text.
        tokens, prefixes: the tokens, and all their beginnings.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: frozenset[int]) -> None:
        """Build the tree. Raises InvalidArgumentError if a byte of UTF-8 is not a token."""
        self.ends = ends
        excluded = ends.union(tokenizer.special_tokens.values())
        table = tokenizer.vocabulary.token_bytes.items()
        tokens = {i: data for i, data in table if i < vocab_size and i not in excluded}
        self.tokens = frozenset(tokens.values())
        self.prefixes = frozenset(data[:n] for data in self.tokens for n in range(1, len(data) + 1))
        if missing := _UTF8_BYTES - {data[0] for data in self.tokens if len(data) == 1}:
            raise InvalidArgumentError(
                "choices, regex and json_schema need a vocabulary with a token for each byte; this "
                f"one lacks {len(missing)} of them, such as 0x{min(missing):02x}"
            )
        joined = np.frombuffer(b"".join(tokens.values()), np.uint8)
        lengths = np.array([len(data) for data in tokens.values()], np.int64)
        starts = np.cumsum(lengths) - lengths
        current = np.zeros(len(tokens), np.int64)  # node that each token has reached
        # Of each level: the parents of its nodes, and the bytes that lead to the nodes.
        self._levels: list[tuple[IntArray, NDArray[np.uint8]]] = []
        self._size = 1
        for depth in range(lengths.max(initial=0)):
            longer = np.flatnonzero(lengths > depth)
            keys, inverse = np.unique(
                current[longer] * 256 + joined[starts[longer] + depth], return_inverse=True
            )
            self._levels.append((keys >> 8, (keys & 255).astype(np.uint8)))
            current[longer] = self._size + inverse
            self._size += len(keys)
        self._nodes = np.zeros(vocab_size, np.int64)  # node at which each id ends; 0 without token
        self._nodes[list(tokens)] = current

    def states_after(
        self, automaton: ByteAutomaton, readings: frozenset[Reading]
    ) -> NDArray[np.int32]:
        """Return the automaton's state after each token id is read from `readings`, (V,).

        The state is DEAD after an id without a token. Raises the errors of `ByteAutomaton.step`.
        """
        states = np.zeros(self._size, np.int32)  # all DEAD
        states[0] = automaton.state(readings)
        first = 1
        for parents, data in self._levels:
            before = states[parents]
            alive = np.flatnonzero(before != DEAD)
            if not len(alive):
                break
            states[first + alive] = automaton.step(before[alive], data[alive])
            first += len(parents)
        states[0] = DEAD
        return states[self._nodes]
