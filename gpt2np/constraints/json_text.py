"""Syntax trees of JSON texts (RFC 8259) without white space: strings, numbers, arrays, objects.

`CharacterAutomaton` adds a tree once for each state that follows it. So trees are shared: a
property has one tree, whether it is the first of its object or comes after a comma.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpt2np.constraints.characters import Ranges, character_set, complement, intersection
from gpt2np.constraints.syntax import (
    Alternation,
    CharacterClass,
    Concatenation,
    Repetition,
    Tree,
    literals,
    parse,
)

MAX_DIGITS = 15
"""Digits of a number on each side of the point: float64 distinguishes numbers of 15 digits."""

EMPTY = Concatenation()
NOTHING = CharacterClass(())
"""Matches no text."""

_SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_CODE_ESCAPE = (  # surrogates only in pairs, because a lone one is no character
    r"u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_INTEGER = rf"-?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
ANY_STRING = parse(rf'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|{_CODE_ESCAPE}))*"')
ANY_INTEGER = parse(_INTEGER)
ANY_NUMBER = parse(rf"{_INTEGER}(?:\.[0-9]{{1,{MAX_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?")
BOOLEAN, NULL = parse("true|false"), parse("null")
_QUOTE, _COLON, _COMMA, _POINT, _BACKSLASH = map(parse, ('"', ":", ",", r"\.", r"\\"))
_BRACKETS, _BRACES = [*map(parse, (r"\[", "]"))], [*map(parse, (r"\{", r"\}"))]
_RAW = complement(character_set([(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))]))


def sequence(*parts: Tree) -> Tree:
    """Return a tree that matches its parts in sequence."""
    return Concatenation(parts)


def either(branches: Iterable[Tree]) -> Tree:
    """Return a tree that matches any one of the branches; without branches, no text."""
    return Alternation(tuple(branches))


def optional(part: Tree) -> Tree:
    """Return a tree that matches `part` or the empty text."""
    return Repetition(part, 0, 1)


def literal(value: object) -> Tree:
    """Return a tree that matches a JSON value; its strings are written in one way."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _literal(text)


@lru_cache(1024)
def _literal(text: str) -> Tree:
    return literals([text])


@lru_cache(128)
def character(characters: Ranges) -> Tree:
    """Return a tree that matches a character of a set as it is written in a string.

    A character is written as itself or, where it must be escaped, in the short form. Control
    characters without a short form are left out.
    """
    short = [e for c, e in _SHORT_ESCAPES.items() if any(a <= ord(c) <= b for a, b in characters)]
    escapes = CharacterClass(character_set((ord(e), ord(e)) for e in short))
    raw = CharacterClass(intersection(characters, _RAW))
    return either([raw, sequence(_BACKSLASH, escapes)])


def string(content: Tree) -> Tree:
    """Return a tree of strings whose decoded content matches a tree."""
    return sequence(_QUOTE, _written(content), _QUOTE)


def _written(tree: Tree) -> Tree:
    if isinstance(tree, CharacterClass):
        return character(tree.characters)
    if isinstance(tree, Repetition):
        return Repetition(_written(tree.part), tree.least, tree.most)
    if isinstance(tree, Concatenation):
        return Concatenation(tuple(map(_written, tree.parts)))
    return Alternation(tuple(map(_written, tree.branches)))


def array(item: Tree, least: int = 0, most: int | None = None) -> Tree:
    """Return a tree of arrays of `least` to `most` items."""
    if most == 0:
        return sequence(*_BRACKETS)
    more = Repetition(sequence(_COMMA, item), max(least - 1, 0), most and most - 1)
    items = sequence(item, more)
    return sequence(_BRACKETS[0], items if least else optional(items), _BRACKETS[1])


def object_of(members: Sequence[tuple[Tree, bool]], additional: Tree | None) -> Tree:
    """Return a tree of objects with members in this order, each with whether it is required.

    Any number of `additional` members may follow.
    """
    if additional:
        more = sequence(additional, Repetition(sequence(_COMMA, additional), 0, None))
        members = [*members, (more, False)]
    later = [
        sequence(_COMMA, m) if needed else optional(sequence(_COMMA, m)) for m, needed in members
    ]
    starts = []
    for i, (member, needed) in enumerate(members):
        starts.append(sequence(member, *later[i + 1 :]))
        if needed:
            break
    else:
        starts.append(EMPTY)
    return sequence(_BRACES[0], either(starts), _BRACES[1])


def member(name: Tree, value: Tree) -> Tree:
    """Return a tree of the members of an object: a string, a colon and a value."""
    return sequence(name, _COLON, value)


@lru_cache
def any_value(depth: int) -> Tree:
    """Return a tree of all values with `depth` levels of arrays and objects."""
    scalars = [ANY_STRING, ANY_NUMBER, BOOLEAN, NULL]
    if depth == 0:
        return either(scalars)
    value = any_value(depth - 1)
    return either([*scalars, array(value), object_of([], member(ANY_STRING, value))])


@lru_cache(128)
def numbers(low: int, high: int, n_decimals: int = 0) -> Tree:
    """Return a tree of the numbers n / 10**n_decimals for the integers n from `low` to `high`.

    Zeros at the end of the decimals may be left out.
    """
    negative = sequence(parse("-"), _unsigned(max(1, -high), -low, n_decimals))
    return either([negative, _unsigned(max(low, 0), high, n_decimals)])


def _unsigned(low: int, high: int, n_decimals: int) -> Tree:
    branches = []
    for first, last, least, most in _split(low, high, 10**n_decimals):
        fraction: Tree = EMPTY
        if n_decimals:
            fraction = sequence(_POINT, _digits(least, most, n_decimals, True))
            fraction = fraction if least else optional(fraction)
        for n in range(len(str(first)), len(str(last)) + 1):
            smallest = 10 ** (n - 1) if n > 1 else 0
            whole = _digits(max(first, smallest), min(last, 10**n - 1), n, False)
            branches.append(sequence(whole, fraction))
    return either(branches)


def _digits(low: int, high: int, n: int, may_omit_zeros: bool) -> Tree:
    """Return a tree of the strings of n digits from `low` to `high`."""
    branches = []
    for first, last, least, most in _split(low, high, 10 ** (n - 1)):
        if (least, most) == (0, 10 ** (n - 1) - 1):
            rest: Tree = Repetition(_digit(0, 9), 0 if may_omit_zeros else n - 1, n - 1)
        else:
            rest = _digits(least, most, n - 1, may_omit_zeros)
            rest = optional(rest) if may_omit_zeros and least == 0 else rest
        branches.append(sequence(_digit(first, last), rest))
    return either(branches)


@lru_cache
def _digit(low: int, high: int) -> Tree:
    return CharacterClass(character_set([(ord("0") + low, ord("0") + high)]))


def _split(low: int, high: int, unit: int) -> list[tuple[int, int, int, int]]:
    """Split the integers from `low` to `high` into ranges of quotients and remainders by `unit`.

    Returns ranges (first, last, least, most): each quotient from `first` to `last` with each
    remainder from `least` to `most`.
    """
    (first, least), (last, most) = divmod(low, unit), divmod(high, unit)
    if low > high:
        parts = []
    elif first == last:
        parts = [(first, last, least, most)]
    else:
        middle = (first + 1, last - 1, 0, unit - 1)
        parts = [(first, first, least, unit - 1), middle, (last, last, 0, most)]
    return [part for part in parts if part[0] <= part[1]]
