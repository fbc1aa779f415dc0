r"""Patterns → trees: the regular subset of Python's regular expressions.

    abc  \.  \n  \x41  é      characters; \ before any sign makes it plain
    .                         any character but a line feed
    [a-zé]  [^"\s]            one of these, or one that is none of them
    \d \w \s \p{Greek}        digits, word characters, white space, a Unicode property; in
    \D \W \S \P{Greek}        capitals: all others. As of the `regex` package, over all of Unicode
    (ab)  (?:ab)  (?P<n>ab)   a group
    ab|cd|                    one of several, perhaps nothing
    * + ? {3} {2,5} {2,} {,5} repetition; a ? behind it changes nothing

The whole text must match, so a ^ at the pattern's beginning and a $ at its end do nothing.
Whatever else Python knows (other anchors, back-references, look-around, flags, possessive and
atomic parts) is refused by name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import regex

from gpt2np.constraints.characters import (
    Ranges,
    character_set,
    characters_of,
    complement,
)
from gpt2np.errors import InvalidArgumentError, short_repr

DEEPEST = 100
"""How many groups may stand within each other."""


@dataclass(frozen=True)
class OneOf:
    """One character of a set."""

    characters: Ranges


@dataclass(frozen=True)
class Concatenation:
    """Parts one after another; without any, nothing."""

    parts: tuple["Tree", ...] = ()


@dataclass(frozen=True)
class Alternation:
    """One of several."""

    branches: tuple["Tree", ...]


@dataclass(frozen=True)
class Repetition:
    """`part`, `least` to `most` times; None is without limit."""

    part: "Tree"
    least: int
    most: int | None


Tree = OneOf | Concatenation | Alternation | Repetition

_ANY_BUT_LINE_FEED = complement(((0x0A, 0x0A),))
_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "a": 0x07}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNTS = regex.compile(r"\{(?:(?P<exact>[0-9]+)|(?P<least>[0-9]*),(?P<most>[0-9]*))\}")
_LONGEST_COUNTS = 20  # characters; such numbers are refused later
_SIMPLE_REPETITIONS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_GROUP_START = regex.compile(r"\((?:\?:|\?P?<[^\W\d]\w*>|(?!\?))")
_PROPERTY = regex.compile(r"\\[pP](?:\{\^?[\w\s=:.-]+\}|[A-Za-z])")
_SET_OPERATIONS = ("[:", "[.", "[=", "--", "&&", "||", "~~")
_OTHER_ANCHORS = "anchors but ^ at the beginning and $ at the end, which do nothing"
_ESCAPES_REFUSED = {
    **dict.fromkeys("0123456789gk", r"back-references and octal numbers (write \x00)"),
    **dict.fromkeys("bBmMAzZG", _OTHER_ANCHORS),
}
_GROUPS_REFUSED = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?P=": "back-references",
    "(?P>": "recursion",
    "(?R": "recursion",
    "(?&": "recursion",
    "(?>": "atomic groups",
    "(?|": "branch reset",
    "(?#": "comments",
    "(?(": "conditions",
}


def parse(pattern: str) -> Tree:
    """The tree of a pattern.

    Raises:
        InvalidArgumentError: it is malformed, or asks for what is not regular.
    """
    return _Parser(pattern).parse()


def literals(texts: Iterable[str]) -> Tree:
    """The tree of a choice between texts."""
    return Alternation(tuple(Concatenation(tuple(map(_literal, text))) for text in texts))


def _literal(character: str) -> OneOf:
    return OneOf(character_set([(ord(character), ord(character))]))


def _only_code(characters: Ranges) -> int | None:
    """The code point of a set's only character, None of another set."""
    return characters[0][0] if len(characters) == 1 and len(set(characters[0])) == 1 else None


class _Parser:
    """Recursive descent; `at` is the place in the pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 1 if pattern.startswith("^") else 0
        self.depth = 0

    def parse(self) -> Tree:
        tree = self._alternation()
        if self.at < len(self.pattern):
            raise self._error("unbalanced )")
        return tree

    def _alternation(self) -> Tree:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.pattern) and self._next() not in "|)":
            if self._next() == "$" and self.at == len(self.pattern) - 1:
                self.at += 1
            else:
                parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _repeated(self, part: Tree) -> Tree:
        counts = self._counts()
        if counts is None:
            return part
        least, most = counts
        if most is not None and most < least:
            raise self._error(f"a repetition of at least {least} and at most {most}")
        if self._take("+"):
            raise self._refused("possessive repetition")
        self._take("?")  # lazy: the same texts match
        if self._counts() is not None:
            raise self._error("a repetition of a repetition; use a group")
        return Repetition(part, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        """The numbers of a repetition that stands here, if one does."""
        if found := _COUNTS.match(self.pattern, self.at):
            if found.end() - self.at > _LONGEST_COUNTS:
                raise self._error("too large a repetition")
            self.at = found.end()
            if exact := found["exact"]:
                return int(exact), int(exact)
            return int(found["least"] or 0), int(found["most"]) if found["most"] else None
        if self._next() in _SIMPLE_REPETITIONS:
            self.at += 1
            return _SIMPLE_REPETITIONS[self.pattern[self.at - 1]]
        return None

    def _atom(self) -> Tree:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return OneOf(self._class())
        if character == "\\":
            return OneOf(self._escape())
        if character in "^$":
            raise self._refused(_OTHER_ANCHORS)
        if character in "*+?" or _COUNTS.match(self.pattern, self.at):
            raise self._error(f"nothing to repeat before {character}")
        if character == "{":
            raise self._error(r"a { that begins no repetition; write \{ for the sign")
        self.at += 1
        return OneOf(_ANY_BUT_LINE_FEED) if character == "." else _literal(character)

    def _group(self) -> Tree:
        start = _GROUP_START.match(self.pattern, self.at)
        if start is None:
            rest = self.pattern[self.at :]
            known = (what for mark, what in _GROUPS_REFUSED.items() if rest.startswith(mark))
            raise self._refused(next(known, "flags and other extensions after (?"))
        if self.depth == DEEPEST:
            raise self._error(f"more than {DEEPEST} groups within each other")
        opened, self.at, self.depth = self.at, start.end(), self.depth + 1
        tree = self._alternation()
        if not self._take(")"):
            self.at = opened
            raise self._error("a ( that is not closed")
        self.depth -= 1
        return tree

    def _class(self) -> Ranges:
        opened = self.at
        self.at += 1
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        first = True
        while first or self._next() != "]":
            if self.at == len(self.pattern):
                self.at = opened
                raise self._error("a [ that is not closed")
            found += self._class_item()
            first = False
        self.at += 1
        return complement(character_set(found)) if negated else character_set(found)

    def _class_item(self) -> Ranges:
        """A character, a range, or an escape for several."""
        start = self.at
        if self.pattern.startswith(_SET_OPERATIONS, start):
            raise self._refused(r"set operations and named classes (a plain sign needs a \)")
        low = self._class_character()
        ranged = self._next() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("", "]")
        if not ranged:
            return low
        if self.pattern.startswith(_SET_OPERATIONS, self.at):
            raise self._refused(r"set operations (a plain sign needs a \)")
        self.at += 1
        high = self._class_character()
        first, last = _only_code(low), _only_code(high)
        if first is None or last is None or first > last:
            text = self.pattern[start : self.at]
            self.at = start
            raise self._error(f"{text}, which is no range of characters")
        return character_set([(first, last)])

    def _class_character(self) -> Ranges:
        if self._next() == "\\":
            return self._escape(in_class=True)
        self.at += 1
        return _literal(self.pattern[self.at - 1]).characters

    def _escape(self, *, in_class: bool = False) -> Ranges:
        kind = self.pattern[self.at + 1 : self.at + 2]
        if kind in _ESCAPES_REFUSED and not (in_class and kind == "b"):
            raise self._refused(_ESCAPES_REFUSED[kind])
        if kind and kind in "dDwWsS":
            self.at += 2
            return characters_of(f"\\{kind}")
        if kind and kind in "pP":
            return self._property()
        if kind in _HEX_DIGITS:
            return self._numbered(_HEX_DIGITS[kind])
        if kind == "" or (kind.isascii() and kind.isalpha() and kind not in {*_CONTROLS, "b"}):
            raise self._error(f"the escape \\{kind} means nothing")
        self.at += 2
        code = 0x08 if kind == "b" else _CONTROLS.get(kind, ord(kind))
        return character_set([(code, code)])

    def _property(self) -> Ranges:
        found = _PROPERTY.match(self.pattern, self.at)
        try:
            characters = characters_of(found[0]) if found else ()
        except regex.error:
            found = None
        if found is None:
            raise self._error("an unknown Unicode property")
        self.at = found.end()
        return characters

    def _numbered(self, digits: int) -> Ranges:
        text = self.pattern[self.at + 2 : self.at + 2 + digits]
        is_hex = len(text) == digits and all(digit in "0123456789abcdefABCDEF" for digit in text)
        if not is_hex or int(text, 16) > 0x10FFFF:
            raise self._error(f"{self.pattern[self.at : self.at + 2]} needs {digits} hex digits")
        self.at += 2 + digits
        return character_set([(int(text, 16), int(text, 16))])

    def _next(self) -> str:
        """The character here; at the end a lone surrogate, which is equal to nothing else."""
        return self.pattern[self.at] if self.at < len(self.pattern) else "\ud800"

    def _take(self, character: str) -> bool:
        taken = self._next() == character
        self.at += taken
        return taken

    def _error(self, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the pattern {short_repr(self.pattern)} has at offset {self.at} {what}"
        )

    def _refused(self, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the pattern {short_repr(self.pattern)} asks at offset {self.at} for what a constraint "
            f"can't do: {what}"
        )
