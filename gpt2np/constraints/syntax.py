r"""A parser of regular expressions, limited to the syntax that a finite automaton can match.

    abc  \.  \n  \x41  é      characters; \ before a punctuation mark makes the mark literal
    .                         any character but a line feed
    [a-zé]  [^"\s]            a set of characters, or its complement
    \d \w \s \p{Greek}        digits, word characters, white space, a Unicode property
    \D \W \S \P{Greek}        their complements; all as in the `regex` package
    (ab)  (?:ab)  (?P<n>ab)   a group
    ab|cd|                    alternatives, which may be empty
    * + ? {3} {2,5} {2,} {,5} repetition; a following ? (lazy) has no effect

The whole text must match, so a leading ^ and a trailing $ have no effect. Other anchors,
back-references, look-around, flags, possessive quantifiers, atomic groups and all other syntax
raise an error that quotes the unsupported syntax.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import regex

from gpt2np.constraints.characters import (
    Node,
    Ranges,
    character_set,
    characters_of,
    complement,
    first_node,
)
from gpt2np.errors import InvalidArgumentError, short_repr

MAX_DEPTH = 100  # of nested groups
MAX_WORK = 4_000_000
"""Units of work of one pattern or one mask: each takes about 50 ns or 10 bytes, so about 0.2 s."""

_CHARACTER = 30  # units of work for each character of a pattern
_RANGE = 9  # units of work for each range of characters in a set in brackets; \\w has 760


class PatternTooLargeError(InvalidArgumentError):
    """A pattern, a schema, or the choices are too large."""


class WorkCounter:
    """Counts the work on one pattern, in time or memory, up to MAX_WORK."""

    def __init__(self) -> None:
        self._n_units = 0

    def add(self, n_units: int) -> None:
        """Count `n_units` more. Raises PatternTooLargeError beyond MAX_WORK."""
        self._n_units += n_units
        if self._n_units > MAX_WORK:
            raise PatternTooLargeError(
                "the pattern, the choices or the schema are too large, with repetitions expanded; "
                "use smaller counts, fewer alternatives, or x{0,8000} in place of (x?){8000}"
            )


@dataclass(frozen=True)
class CharacterClass:
    """Syntax tree that matches one character of a set."""

    characters: Ranges

    @cached_property
    def node(self) -> Node:
        return first_node(self.characters)


@dataclass(frozen=True)
class Concatenation:
    """Syntax tree that matches its parts in sequence; without parts, the empty text."""

    parts: tuple["Tree", ...] = ()


@dataclass(frozen=True)
class Alternation:
    """Syntax tree that matches any one of its parts, which may contain the tree itself."""

    parts: Sequence["Tree"]


@dataclass(frozen=True)
class Repetition:
    """Syntax tree that matches `part` from `least` to `most` times; None means no maximum."""

    part: "Tree"
    least: int
    most: int | None

    @property
    def parts(self) -> tuple["Tree"]:
        return (self.part,)


Tree = CharacterClass | Concatenation | Alternation | Repetition

EMPTY = Concatenation()
ANYTHING = Repetition(CharacterClass(complement(())), 0, None)
"""Matches every text."""

_ANY_BUT_LINE_FEED = complement(((0x0A, 0x0A),))
_ANY_BUT_LINE_END = complement(((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))
_SMALLEST_SETS = {"d": "[0-9]", "w": "[0-9A-Za-z_]", "s": r"[\t-\r ]"}  # in any language
_LARGEST_SETS = {"d": r"\d", "w": r"\w", "s": r"[\s\x1c-\x1f\ufeff]"}
_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "a": 0x07, "b": 0x08}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNTS = regex.compile(r"\{(?:(?P<exact>\d{1,9})|(?P<least>\d{0,9}),(?P<most>\d{0,9}))\}", regex.A)
_SIMPLE_REPETITIONS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_GROUP_START = regex.compile(r"\((?:\?:|\?P?<[^\W\d]\w*>|(?!\?))")
_PROPERTY = regex.compile(r"\\[pP](?:\{\^?[\w\s=:.-]+\}|[A-Za-z])")
_SET_OPERATIONS = ("[:", "[.", "[=", "--", "&&", "||", "~~")


def parse(pattern: str, *, is_portable: bool = False) -> Tree:
    r"""Parse a regular expression to a syntax tree.

    With `is_portable`, the pattern is a search, as in JSON Schema: ^ and $ hold for one branch. And
    `.`, \d, \w, \s and their complements match only characters that they match in Python and in
    ECMAScript, where \d and \w are ASCII. Raises InvalidArgumentError if the pattern is malformed
    or uses unsupported syntax, and PatternTooLargeError.
    """
    WorkCounter().add(_CHARACTER * len(pattern))
    return _Parser(pattern, is_portable).parse()


def literals(texts: Sequence[str]) -> Tree:
    """Return a syntax tree that matches each of `texts`, and no other text.

    A text with a lone surrogate, which is no character, never matches.
    """
    return Alternation(tuple(Concatenation(tuple(map(_literal, text))) for text in texts))


@lru_cache(4096)
def _literal(character: str) -> CharacterClass:
    return CharacterClass(character_set([(ord(character), ord(character))]))


class _Parser:
    """A recursive descent parser; `position` is the current offset in the pattern."""

    def __init__(self, pattern: str, is_portable: bool) -> None:
        self.pattern = pattern
        self.is_portable = is_portable
        self.is_negated = False  # within a negated set
        self.position = 1 if pattern.startswith("^") and not is_portable else 0
        self.depth = 0
        self.work = WorkCounter()

    def parse(self) -> Tree:
        tree = self._alternation()
        if self.position < len(self.pattern):
            raise self._error("unbalanced )")
        return tree

    def _alternation(self) -> Tree:
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _sequence(self) -> Tree:
        is_search = self.is_portable and self.depth == 0
        is_open = is_search and not self._skip("^")
        parts: list[Tree] = []
        while self.position < len(self.pattern) and self._next() not in "|)":
            after = self.pattern[self.position + 1 : self.position + 2]
            if self._next() == "$" and (not after or (is_search and after == "|")):
                self.position += 1
                is_search = False
            else:
                parts.append(self._repetition(self._atom()))
        parts = [*[ANYTHING] * is_open, *parts, *[ANYTHING] * is_search]
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _repetition(self, part: Tree) -> Tree:
        counts = self._counts()
        if counts is None:
            return part
        least, most = counts
        if most is not None and most < least:
            raise self._error(f"repetition of at least {least} and at most {most}")
        if self._next() == "+":
            raise self._unsupported("+ after a quantifier")
        self._skip("?")  # lazy and greedy quantifiers match the same texts
        if self._counts() is not None:
            raise self._error("repetition of a repetition; use a group")
        return part if part == EMPTY else Repetition(part, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        """Parse a quantifier, such as "*" or "{2,5}", to (least, most); None without quantifier."""
        if counts := _COUNTS.match(self.pattern, self.position):
            self.position = counts.end()
            if exact := counts["exact"]:
                return int(exact), int(exact)
            return int(counts["least"] or 0), int(counts["most"]) if counts["most"] else None
        if self._next() in _SIMPLE_REPETITIONS:
            self.position += 1
            return _SIMPLE_REPETITIONS[self.pattern[self.position - 1]]
        return None

    def _atom(self) -> Tree:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return CharacterClass(self._class())
        if character == "\\":
            return CharacterClass(self._escape())
        if character in "^$":
            raise self._unsupported(f"{character} within the pattern")
        if character in "*+?" or _COUNTS.match(self.pattern, self.position):
            raise self._error(f"nothing to repeat before {character}")
        if character == "{":
            raise self._error(r"{ without counts of up to 9 digits; write \{ for the character")
        self.position += 1
        if character == ".":
            return CharacterClass(_ANY_BUT_LINE_END if self.is_portable else _ANY_BUT_LINE_FEED)
        return _literal(character)

    def _group(self) -> Tree:
        start = _GROUP_START.match(self.pattern, self.position)
        if start is None:
            raise self._unsupported(self.pattern[self.position : self.position + 3])
        if self.depth == MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} nested groups")
        opened, self.position, self.depth = self.position, start.end(), self.depth + 1
        tree = self._alternation()
        if not self._skip(")"):
            self.position = opened
            raise self._error("( is not closed")
        self.depth -= 1
        return tree

    def _class(self) -> Ranges:
        opened = self.position
        self.position += 1
        self.is_negated = self._skip("^")
        ranges: set[tuple[int, int]] = set()
        first = True
        while first or self._next() != "]":
            if self.position == len(self.pattern):
                self.position = opened
                raise self._error("[ is not closed")
            ranges.update(self._class_item())
            first = False
        self.position += 1
        characters = character_set(ranges)
        self.work.add(_RANGE * len(characters))
        is_negated, self.is_negated = self.is_negated, False
        return complement(characters) if is_negated else characters

    def _class_item(self) -> Ranges:
        """Parse one item of a set in brackets: a character, a range, or an escape."""
        start = self.position
        self._refuse_set_operation()
        low = self._class_character()
        if self._next() != "-" or self.pattern[self.position + 1 : self.position + 2] in ("", "]"):
            return low
        self._refuse_set_operation()
        self.position += 1
        high = self._class_character()
        codes = [*chain(*low, *high)]  # first and last code point of both ends
        if len(codes) != 4 or codes[0] != codes[1] or codes[2] != codes[3] or codes[1] > codes[2]:
            text = self.pattern[start : self.position]
            self.position = start
            raise self._error(f"{text} is not a range of characters")
        return character_set([(codes[0], codes[3])])

    def _refuse_set_operation(self) -> None:
        if self.pattern.startswith(_SET_OPERATIONS, self.position):
            mark = self.pattern[self.position : self.position + 2]
            raise self._unsupported(rf"{mark} in a set (a literal sign needs a \)")

    def _class_character(self) -> Ranges:
        if self._next() == "\\":
            return self._escape(in_class=True)
        self.position += 1
        return _literal(self.pattern[self.position - 1]).characters

    def _escape(self, *, in_class: bool = False) -> Ranges:
        kind = self.pattern[self.position + 1 : self.position + 2]
        if kind and kind in "dDwWsS":
            self.position += 2
            return self._portable(kind) if self.is_portable else characters_of(f"\\{kind}")
        if kind and kind in "pP":
            return self._property()
        if kind in _HEX_DIGITS:
            return self._hex_escape(_HEX_DIGITS[kind])
        is_known = kind in _CONTROLS and (kind != "b" or in_class)  # outside, \\b is an anchor
        if kind == "" or (kind.isascii() and kind.isalnum() and not is_known):
            raise self._unsupported(f"\\{kind}")
        self.position += 2
        code = _CONTROLS.get(kind, ord(kind))
        return character_set([(code, code)])

    def _portable(self, kind: str) -> Ranges:
        """Return the characters that all languages match with an escape, such as "d"."""
        sets = _SMALLEST_SETS if kind.islower() != self.is_negated else _LARGEST_SETS
        characters = characters_of(sets[kind.lower()])
        return characters if kind.islower() else complement(characters)

    def _property(self) -> Ranges:
        match = _PROPERTY.match(self.pattern, self.position)
        try:
            characters = characters_of(match[0]) if match else ()
        except regex.error:
            match = None
        if match is None:
            raise self._error("unknown Unicode property")
        self.position = match.end()
        return characters

    def _hex_escape(self, digits: int) -> Ranges:
        text = self.pattern[self.position + 2 : self.position + 2 + digits]
        is_hex = len(text) == digits and all(digit in "0123456789abcdefABCDEF" for digit in text)
        if not is_hex or int(text, 16) > 0x10FFFF:
            raise self._error(
                f"{self.pattern[self.position : self.position + 2]} needs {digits} hex digits"
            )
        self.position += 2 + digits
        return character_set([(int(text, 16), int(text, 16))])

    def _next(self) -> str:
        """Return the next character; at the end, a lone surrogate, which equals no character."""
        return self.pattern[self.position] if self.position < len(self.pattern) else "\ud800"

    def _skip(self, character: str) -> bool:
        is_next = self._next() == character
        self.position += is_next
        return is_next

    def _error(self, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the pattern {short_repr(self.pattern)}, at offset {self.position}: {problem}"
        )

    def _unsupported(self, syntax: str) -> InvalidArgumentError:
        return self._error(f"{syntax} is not supported")
