"""Choices and patterns as constraints of the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import DEAD, ByteAutomaton, Reading, TooManyStatesError
from gpt2np.constraints.protocol import Constraint
from gpt2np.constraints.syntax import literals, parse
from gpt2np.constraints.vocabulary_trie import VocabularyTrie, vocabulary_trie
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.generation.options import GenerationOptions

_T = TypeVar("_T")

_MASKS = 64  # remembered of one constraint; each has V bytes

_BYTES_OF_TEXTS = (*range(0xC0), *range(0xC2, 0xF5))
"""The bytes that UTF-8 uses."""


def text_constraint(
    options: GenerationOptions,
    tokens: Mapping[int, bytes],
    vocab_size: int,
    eos_token_ids: Collection[int],
    special_ids: Collection[int] = (),
) -> Constraint:
    """The constraint that `options.choices` or `options.regex` asks for, before the first id.

    What is found out about a pattern and a vocabulary is kept for the next call with the same
    `tokens`, the same object.

    Args:
        options: one of the two must be set.
        tokens: id → bytes.
        vocab_size: the model's number of rows, V.
        eos_token_ids: the ids that end a text.
        special_ids: ids that are no text, and are never allowed.

    Raises:
        InvalidArgumentError: the pattern is not one that can be used, no text matches it, or a
            byte has no token.
    """
    source = _Source(tokens, vocab_size, frozenset(eos_token_ids), frozenset(special_ids))
    return _start(options.choices, options.regex, source)


@dataclass(frozen=True, eq=False)
class TextConstraint:
    """The state of a text of which some ids are there.

    It has the automaton's readings, not their number, so that it outlives the automaton.
    """

    form: _Form
    state: frozenset[Reading]

    @property
    def complete(self) -> bool:
        """Whether the text matches and nothing can follow."""
        return self.form.is_complete(self.state)

    def allowed(self) -> NDArray[np.bool_]:
        """(V,): the ids that may come next; an end id, where the text may end here. Read-only.

        Raises:
            InvalidArgumentError: to know them takes more states than an automaton may have.
        """
        return self.form.mask(self.state)

    def advance(self, token_id: int) -> TextConstraint:
        """The state after one more id; after an end id the same."""
        if token_id in self.form.eos_token_ids:
            return self
        data = self.form.tokens.get(token_id, b"")
        return TextConstraint(self.form, self.form.after(self.state, data))


class _Form:
    """What all states of texts of one form share.

    An automaton that is full makes way for an empty one: what a text leads to doesn't depend on the
    texts before it, and memory is bounded.
    """

    def __init__(
        self,
        automaton: ByteAutomaton,
        trie: VocabularyTrie,
        tokens: Mapping[int, bytes],
        eos_token_ids: frozenset[int],
    ) -> None:
        self.tokens = tokens
        self.eos_token_ids = eos_token_ids
        self.mask = lru_cache(_MASKS)(self._mask)
        self._automaton = automaton
        self._trie = trie

    def is_complete(self, readings: frozenset[Reading]) -> bool:
        return self._with_room(readings, lambda automaton, state: automaton.is_complete(state))

    def after(self, readings: frozenset[Reading], data: bytes) -> frozenset[Reading]:
        """The state after the bytes of a token; DEAD's after none."""
        if not data:
            return self._automaton.readings(DEAD)
        return self._with_room(
            readings, lambda automaton, state: automaton.readings(automaton.after(state, data))
        )

    def _mask(self, readings: frozenset[Reading]) -> NDArray[np.bool_]:
        mask, matches = self._with_room(
            readings,
            lambda automaton, state: (
                self._trie.allowed(automaton, state),
                automaton.matches(state),
            ),
        )
        mask[[end for end in self.eos_token_ids if end < len(mask)]] = matches
        mask.setflags(write=False)
        return mask

    def _with_room(
        self, readings: frozenset[Reading], asked: Callable[[ByteAutomaton, int], _T]
    ) -> _T:
        """What is asked of an automaton and its number of a state."""
        automaton = self._automaton
        try:
            return asked(automaton, automaton.state(readings))
        except TooManyStatesError:
            self._automaton = automaton = automaton.emptied()
        return asked(automaton, automaton.state(readings))


@dataclass(frozen=True)
class _Source:
    """What masks depend on beside the form; equal only with the same object `tokens`."""

    tokens: Mapping[int, bytes] = field(hash=False)
    vocab_size: int
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int]

    def __eq__(self, other: object) -> bool:
        mine = self.vocab_size, self.eos_token_ids, self.special_ids
        return (
            isinstance(other, _Source)
            and self.tokens is other.tokens
            and mine == (other.vocab_size, other.eos_token_ids, other.special_ids)
        )

    @cached_property
    def text_tokens(self) -> dict[int, bytes]:
        """The tokens that are text, and that the model has a row for."""
        others = self.eos_token_ids | self.special_ids
        kept = self.tokens.items()
        return {i: data for i, data in kept if i < self.vocab_size and i not in others}


@lru_cache(maxsize=8)
def _start(choices: tuple[str, ...], pattern: str | None, source: _Source) -> TextConstraint:
    automaton = ByteAutomaton.of(literals(choices) if pattern is None else parse(pattern))
    if automaton.start == DEAD:
        raise InvalidArgumentError(f"no text matches the pattern {short_repr(pattern)}")
    form = _Form(automaton, _trie(source), source.text_tokens, source.eos_token_ids)
    return TextConstraint(form, automaton.readings(automaton.start))


@lru_cache(maxsize=4)
def _trie(source: _Source) -> VocabularyTrie:
    single = set(source.text_tokens.values())
    missing = [byte for byte in _BYTES_OF_TEXTS if bytes([byte]) not in single]
    if missing:
        raise InvalidArgumentError(
            f"choices and regex need a vocabulary with a token for each byte; {len(missing)} have "
            f"none here, 0x{missing[0]:02x} among them"
        )
    return vocabulary_trie(source.text_tokens, source.vocab_size)
