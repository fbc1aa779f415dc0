"""Token masks: which token ids may come next so that the text can still match a constraint."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpt2np.constraints.automaton import DEAD, MATCHED, ByteAutomaton, Reading
from gpt2np.constraints.distances import TokenDistances
from gpt2np.constraints.syntax import PatternTooLargeError, literals, parse
from gpt2np.constraints.trie import VocabularyTrie
from gpt2np.errors import InvalidArgumentError, counted, short_repr
from gpt2np.kernels.array import Array, BoolArray

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer

_T = TypeVar("_T")

_MAX_DEPTH = 4  # levels of a JSON value that may nest without end; fewer if the schema is too large
_CACHED = 64  # distances to keep per constraint; 4 V bytes each
_UTF8_BYTES = {*range(0xC0), *range(0xC2, 0xF5)}  # all bytes that occur in UTF-8


class Constraint(Protocol):
    """The state of a constraint after a text; pass the initial state to `LanguageModel.generate`.

    A state is immutable, because sequences, draft tokens and threads share it. Any class with these
    three members is a constraint.

    A method `within(max_tokens)` is optional, too. It returns the initial state for a text of at
    most `max_tokens` tokens, or raises an error if there is no such text. The returned state never
    allows a token if the text could not be completed with the tokens that are left after it.

    So is a method `prepare(seconds)`, which computes a part of a mask that takes long. It returns
    whether the mask is ready. An engine calls it before each step; other sequences run meanwhile.
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


def text_constraint(
    tokenizer: Tokenizer,
    vocab_size: int,
    ends: Collection[int],
    *,
    choices: tuple[str, ...] = (),
    regex: str | None = None,
    json_schema: str | None = None,
) -> TextConstraint:
    """Create a constraint that limits a text to `choices`, a `regex`, or a JSON Schema.

    Later calls with the same tokenizer reuse cached automata and masks. `vocab_size` is V, the
    model's number of token ids. The ids `ends` are allowed where the text may end. Other special
    tokens are not text, and never allowed. Raises InvalidArgumentError if the pattern or schema is
    malformed, unsupported or too large, no text matches, or a byte has no token.
    """
    vocabulary = _vocabulary(tokenizer, vocab_size, frozenset(ends))
    return _start(choices, regex, json_schema, vocabulary)


@dataclass(frozen=True, eq=False)
class TextConstraint:
    """The state of a constraint to choices or a regular expression; see `Constraint`.

    `state` is a set of NFA positions (see `Reading`), not the number of a DFA state: numbers become
    invalid when `_TokenMasks` replaces the automaton. `tokens_left` counts the next token, too.
    """

    masks: _TokenMasks
    state: frozenset[Reading]
    tokens_left: float = math.inf
    _fresh: list[ByteAutomaton] = field(default_factory=list)  # of `prepare`, until it is done

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
        return self.masks.allowed(self.state, self.tokens_left - 1)

    def advance(self, token_id: int) -> TextConstraint:
        """Return the constraint after one more token; an end-of-text token changes nothing."""
        vocabulary = self.masks.vocabulary
        if token_id in vocabulary.ends:
            return self
        data = vocabulary.text_tokens.get(token_id, b"")
        return TextConstraint(self.masks, self.masks.after(self.state, data), self.tokens_left - 1)

    def prepare(self, seconds: float) -> bool:
        """Compute a part of the mask; return whether it is ready. Raises what `allowed` raises."""
        return self.masks.prepare(self.state, time.perf_counter() + seconds, self._fresh)

    def within(self, max_tokens: int) -> TextConstraint:
        """Return the constraint for a text of at most `max_tokens` tokens.

        Raises InvalidArgumentError if no text that matches has so few tokens.
        """
        least = self.masks.min_tokens(self.state)
        if least > max_tokens:
            raise InvalidArgumentError(
                f"max_new_tokens and the context leave {counted(max_tokens, 'token')}; the match "
                f"with the fewest bytes needs {least}; set it to {least}, or shorten the "
                "prompt",
                param="max_new_tokens",
            )
        return TextConstraint(self.masks, self.state, max_tokens)


class _TokenMasks:
    """The token masks of one constraint, computed from an automaton.

    A mask follows from the distance to a match after each token. The last distances are cached.

    The automaton gets new states while texts are read. Once it reaches its limits, a fresh
    automaton for the same pattern replaces it, which bounds memory and changes no result.
    """

    def __init__(self, automaton: ByteAutomaton, vocabulary: _Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._automaton = automaton
        self._distances: dict[frozenset[Reading], Array] = {}  # ends with the last
        self._distance = TokenDistances(
            automaton.characters, vocabulary.tokens, vocabulary.prefixes
        )

    def min_tokens(self, readings: frozenset[Reading]) -> int:
        """Return the number of tokens to a match."""
        return min(map(self._distance, readings))

    def after(self, readings: frozenset[Reading], data: bytes) -> frozenset[Reading]:
        """Advance a state, a set of NFA positions, by a token's bytes; DEAD if `data` is empty."""
        if not data:
            return self._automaton.readings(DEAD)
        return self._read(lambda a: a.readings(a.after(a.state(readings), data)))

    def allowed(self, readings: frozenset[Reading], most: float) -> BoolArray:
        """Return the tokens after which `most` more tokens can lead to a match, (V,)."""
        distances = self._distances_after(readings)
        mask: BoolArray = (distances <= most) & (distances < math.inf)
        mask[[end for end in self.vocabulary.ends if end < len(mask)]] = MATCHED in readings
        mask.setflags(write=False)
        return mask

    def prepare(
        self, readings: frozenset[Reading], deadline: float, fresh: list[ByteAutomaton]
    ) -> bool:
        """Compute distances until a deadline; return whether they are known.

        `fresh` keeps a fresh automaton for the next call, once this one has become too large.
        """
        if readings in self._distances:
            return True
        automaton = fresh[0] if fresh else self._automaton
        try:
            self._distances[readings] = self.vocabulary.trie.distances(
                automaton, readings, self._distance, deadline
            )
        except TimeoutError:
            return False
        except PatternTooLargeError:
            if fresh:
                raise
            fresh.append(ByteAutomaton(automaton.characters))
            return False
        self._automaton = automaton
        fresh.clear()
        return True

    def _distances_after(self, readings: frozenset[Reading]) -> Array:
        """Return the distance to a match after each token id, (V,)."""
        distances = self._distances.pop(readings, None)
        if distances is None:
            trie, distance = self.vocabulary.trie, self._distance
            distances = self._read(lambda a: trie.distances(a, readings, distance))
        self._distances[readings] = distances
        for oldest in [*self._distances][:-_CACHED]:
            self._distances.pop(oldest, None)
        return distances

    def _read(self, compute: Callable[[ByteAutomaton], _T]) -> _T:
        """Return `compute(automaton)`, with a fresh automaton if this one becomes too large."""
        with suppress(PatternTooLargeError):
            return compute(self._automaton)
        fresh = ByteAutomaton(self._automaton.characters)
        result = compute(fresh)
        self._automaton = fresh
        return result


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens of text, and the ids that end a text."""

    tokenizer: Tokenizer
    vocab_size: int
    ends: frozenset[int]

    @cached_property
    def text_tokens(self) -> dict[int, bytes]:
        """The bytes of each token that is text, not a special token, and has an embedding.

        Raises InvalidArgumentError if a byte of UTF-8 is not a token.
        """
        excluded = self.ends.union(self.tokenizer.special_tokens.values())
        table = self.tokenizer.vocabulary.token_bytes.items()
        tokens = {i: data for i, data in table if i < self.vocab_size and i not in excluded}
        if missing := _UTF8_BYTES - {data[0] for data in tokens.values() if len(data) == 1}:
            raise InvalidArgumentError(
                "choices, regex and json_schema need a vocabulary with a token for each byte; this "
                f"one lacks {len(missing)} of them, such as 0x{min(missing):02x}"
            )
        return tokens

    @cached_property
    def tokens(self) -> frozenset[bytes]:
        """The tokens of `text_tokens`."""
        return frozenset(self.text_tokens.values())

    @cached_property
    def prefixes(self) -> frozenset[bytes]:
        """The beginnings of all tokens, and the tokens."""
        return frozenset(data[:n] for data in self.tokens for n in range(1, len(data) + 1))

    @cached_property
    def trie(self) -> VocabularyTrie:
        """The prefix tree of `text_tokens`."""
        return VocabularyTrie.build(self.text_tokens, self.vocab_size)


_vocabulary = lru_cache(maxsize=4)(_Vocabulary)


@lru_cache(maxsize=8)
def _start(
    choices: tuple[str, ...],
    pattern: str | None,
    schema: str | None,
    vocabulary: _Vocabulary,
) -> TextConstraint:
    """Return the initial state; refuse a pattern that is too large, or that nothing matches."""
    try:
        if schema is not None:
            automaton = _schema_automaton(json.loads(schema))
            subject = "the JSON Schema, of the texts that are supported"
        elif pattern is not None:
            automaton, subject = (
                ByteAutomaton.of(parse(pattern)),
                f"the pattern {short_repr(pattern)}",
            )
        else:
            automaton, subject = ByteAutomaton.of(literals(choices)), "one of the choices"
        if automaton.start == DEAD:
            raise InvalidArgumentError(f"no text matches {subject}")
        masks = _TokenMasks(automaton, vocabulary)
        constraint = TextConstraint(masks, automaton.readings(automaton.start))
        constraint.allowed()
    except PatternTooLargeError as error:
        if schema is None:
            raise
        from gpt2np.constraints.json_schema import largest_count

        _, place = largest_count(json.loads(schema))
        raise InvalidArgumentError(
            f"json_schema is too large: {place}; use smaller bounds or fewer alternatives",
            param="json_schema",
        ) from error
    return constraint


def _schema_automaton(schema: Any) -> ByteAutomaton:
    """Compile a JSON Schema with as many levels as possible of what may nest without end."""
    from gpt2np.constraints.json_schema import schema_tree

    tree, is_cut = schema_tree(schema, 1)
    automaton = ByteAutomaton.of(tree)
    with suppress(PatternTooLargeError):
        for depth in range(2, _MAX_DEPTH + 1):
            if is_cut:
                tree, is_cut = schema_tree(schema, depth)
                automaton = ByteAutomaton.of(tree)
    return automaton
