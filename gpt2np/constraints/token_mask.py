"""Token masks: which token ids may come next so that the text can still match a constraint."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt2np.constraints.automaton import DEAD, MATCHED, ByteAutomaton, Reading, TokenDistances
from gpt2np.constraints.syntax import PatternTooLargeError, literals, parse
from gpt2np.constraints.trie import VocabularyTrie
from gpt2np.errors import InvalidArgumentError, counted, short_repr
from gpt2np.kernels.array import Array, BoolArray

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer

_CACHED = 64  # distances and states to keep per constraint; 8 V bytes each


class Constraint(Protocol):
    """The state of a constraint after a text; pass the initial state to `LanguageModel.generate`.

    A state is immutable, because sequences, draft tokens and threads share it. Any class with these
    three members is a constraint.

    A method `within(max_tokens)` is optional, too. It returns the initial state for a text of at
    most `max_tokens` tokens, or raises an error if there is no such text. The returned state never
    allows a token if the text could not be completed with the tokens that are left after it.
    """

    @property
    def complete(self) -> bool:
        """Whether the text is complete, so that the generation ends."""

    def allowed(self) -> BoolArray:
        """Return a mask of the token ids that may come next. Returns (V,).

        An end-of-text id is allowed where the text may end.
        """

    def advance(self, token_id: int) -> Constraint | None:
        """Return the state after one more allowed token, which may be an end-of-text id.

        None means that every token may follow, without end.
        """


@lru_cache(maxsize=8)
def text_constraint(
    tokenizer: Tokenizer,
    vocab_size: int,
    ends: frozenset[int],
    *,
    choices: tuple[str, ...] = (),
    regex: str | None = None,
    json_schema: str | None = None,
) -> TextConstraint:
    """Create a constraint that limits a text to `choices`, a `regex`, or a JSON Schema.

    Later calls with the same arguments return the same object. `vocab_size` is V, the model's
    number of token ids. The ids `ends` are allowed where the text may end. Other special tokens are
    not text, and never allowed. Raises InvalidArgumentError if the pattern or schema is malformed,
    unsupported or too large, no text matches, or a byte has no token.
    """
    if json_schema is not None:
        from gpt2np.constraints.json_schema import schema_tree

        tree = schema_tree(json.loads(json_schema))
        subject = "the JSON Schema, of the texts that are supported"
    elif regex is not None:
        tree, subject = parse(regex), f"the pattern {short_repr(regex)}"
    else:
        tree, subject = literals(choices), "one of the choices"
    automaton = ByteAutomaton(tree)
    if automaton.start == DEAD:
        raise InvalidArgumentError(f"no text matches {subject}")
    masks = _TokenMasks(automaton, _vocabulary_trie(tokenizer, vocab_size, ends))
    constraint = TextConstraint(masks, automaton.readings[automaton.start])
    constraint.allowed()  # refuses a pattern that is too large
    return constraint


class _Next(NamedTuple):
    """What each token id leads to: (V,) distances to a match, and states of `automaton`."""

    distances: Array
    states: NDArray[np.int32]
    automaton: ByteAutomaton


@dataclass(frozen=True, eq=False)
class TextConstraint:
    """The state of a constraint to choices or a regular expression; see `Constraint`.

    `state` is a set of NFA positions (see `Reading`), not the number of a DFA state: numbers become
    invalid when `_TokenMasks` replaces the automaton. `tokens_left` counts the next token, too.
    """

    masks: _TokenMasks
    state: frozenset[Reading]
    tokens_left: float = math.inf

    @property
    def complete(self) -> bool:
        """Whether the text matches, and no continuation can match."""
        return self.state == {MATCHED}

    def allowed(self) -> BoolArray:
        """Return a read-only mask of the token ids that may come next. Returns (V,).

        End-of-text ids are allowed if the text so far matches. A text token is allowed if the text
        can match within the tokens that are left. Raises InvalidArgumentError if the mask needs an
        automaton that is too large.
        """
        mask: BoolArray = self.masks.next(self.state).distances < self.tokens_left
        mask[[end for end in self.masks.trie.ends if end < len(mask)]] = MATCHED in self.state
        mask.setflags(write=False)
        return mask

    def advance(self, token_id: int) -> TextConstraint:
        """Return the constraint after one more token; an end-of-text token changes nothing."""
        if token_id in self.masks.trie.ends:
            return self
        after = self.masks.next(self.state)
        state = after.automaton.readings[after.states[token_id]]
        return TextConstraint(self.masks, state, self.tokens_left - 1)

    def within(self, max_tokens: int) -> TextConstraint:
        """Return the constraint for a text of at most `max_tokens` tokens.

        Raises InvalidArgumentError if no text that matches has so few tokens.
        """
        least = min(map(self.masks.distance, self.state))
        if least > max_tokens:
            raise InvalidArgumentError(
                f"max_new_tokens and the context leave {counted(max_tokens, 'token')}; the match "
                f"with the fewest bytes needs {least}; set it to {least}, or shorten the prompt",
                param="max_new_tokens",
            )
        return TextConstraint(self.masks, self.state, max_tokens)


class _TokenMasks:
    """The token masks of one constraint, computed from an automaton.

    A mask follows from the distance to a match after each token. The last results are cached.

    The automaton gets new states while texts are read. Once it reaches its limits, a fresh
    automaton for the same pattern replaces it, which bounds memory and changes no result.
    """

    def __init__(self, automaton: ByteAutomaton, trie: VocabularyTrie) -> None:
        self.trie = trie
        self.distance = TokenDistances(automaton, trie.tokens, trie.prefixes)
        self._results: dict[frozenset[Reading], _Next] = {}  # ends with the last

    def next(self, readings: frozenset[Reading]) -> _Next:
        """Return what each token id leads to from a set of NFA positions."""
        result = self._results.pop(readings, None)
        if result is None:
            try:
                result = self._compute(self.distance, readings)
            except PatternTooLargeError:
                fresh = self.distance.automaton.fresh()
                distance = TokenDistances(fresh, self.trie.tokens, self.trie.prefixes)
                result = self._compute(distance, readings)
                self.distance, self._results = distance, {}
        self._results[readings] = result
        for oldest in [*self._results][:-_CACHED]:
            self._results.pop(oldest, None)
        return result

    def _compute(self, distance: TokenDistances, readings: frozenset[Reading]) -> _Next:
        automaton = distance.automaton
        states = self.trie.states_after(automaton, readings)
        reached = np.flatnonzero(np.bincount(states))
        distances = np.full(reached[-1] + 1, math.inf, np.float32)  # of each state
        distances[reached] = [
            min(map(distance, automaton.readings[state]), default=math.inf)
            for state in reached.tolist()
        ]
        return _Next(distances[states], states, automaton)


_vocabulary_trie = lru_cache(maxsize=4)(VocabularyTrie)
