"""Syntax trees of JSON texts (RFC 8259) without white space: strings, numbers, arrays, objects.

An automaton makes one continuation of a tree and what follows it. So trees are shared: a property
has one tree, whether it is the first of its object or comes after a comma.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpt2np.constraints.characters import Ranges, character_set, complement, split
from gpt2np.constraints.syntax import (
    EMPTY,
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
_ESCAPED = ((0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\")))


def sequence(*parts: Tree) -> Tree:
    """Return a tree that matches its parts in sequence."""
    return Concatenation(parts)


def either(branches: Iterable[Tree]) -> Tree:
    """Return a tree that matches any one of the branches; without branches, no text."""
    return Alternation(tuple(branches))


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
    raw = CharacterClass(complement(character_set([*complement(characters), *_ESCAPED])))
    return either([raw, sequence(_BACKSLASH, escapes)])


def string(content: Tree) -> Tree:
    """Return a tree of strings whose decoded content matches a tree."""
    return sequence(_QUOTE, _written(content), _QUOTE)


def _written(tree: Tree) -> Tree:
    if isinstance(tree, CharacterClass):
        return character(tree.characters)
    if isinstance(tree, Repetition):
        return Repetition(_written(tree.part), tree.least, tree.most)
    return type(tree)(tuple(map(_written, tree.parts)))


def array(item: Tree, least: int = 0, most: int | None = None) -> Tree:
    """Return a tree of arrays of `least` to `most` items."""
    if most == 0:
        return sequence(*_BRACKETS)
    more = Repetition(sequence(_COMMA, item), max(least - 1, 0), most and most - 1)
    items = sequence(item, more)
    return sequence(_BRACKETS[0], items if least else Repetition(items, 0, 1), _BRACKETS[1])


def object_of(members: Sequence[tuple[Tree, bool]], additional: Tree | None) -> Tree:
    """Return a tree of objects with members in this order, each with whether it is required.

    Any number of `additional` members may follow.
    """
    if additional:
        more = sequence(additional, Repetition(sequence(_COMMA, additional), 0, None))
        members = [*members, (more, False)]
    first: Tree = EMPTY  # the members that follow {
    later: Tree = EMPTY  # the members that follow another member
    for member, is_required in reversed(members):
        as_first, as_later = sequence(member, later), sequence(_COMMA, member, later)
        first = as_first if is_required else either([as_first, first])
        later = as_later if is_required else either([as_later, later])
    return sequence(_BRACES[0], first, _BRACES[1])


def member(name: Tree, value: Tree) -> Tree:
    """Return a tree of the members of an object: a string, a colon and a value."""
    return sequence(name, _COLON, value)


_values: list[Tree] = [ANY_STRING, ANY_NUMBER, BOOLEAN, NULL]
ANY_VALUE = Alternation(_values)
_values += [array(ANY_VALUE), object_of([], member(ANY_STRING, ANY_VALUE))]


def numbers(low: int, high: int, n_decimals: int = 0) -> Tree:
    """Return a tree of the numbers n / 10**n_decimals for the integers n from `low` to `high`.

    Zeros at the end of the decimals may be left out.
    """
    negative = sequence(parse("-"), _unsigned(max(1, -high), -low, n_decimals))
    return either([negative, _unsigned(max(low, 0), high, n_decimals)])


def _unsigned(low: int, high: int, n_decimals: int) -> Tree:
    unit = 10**n_decimals
    branches = []
    for n in range(len(str(low // unit)), len(str(high // unit)) + 1):  # digits before the point
        first = 10 ** (n - 1) * unit if n > 1 else 0
        last = 10**n * unit - 1
        branches.append(_digits(max(low, first), min(high, last), n + n_decimals, n_decimals))
    return either(branches)


@lru_cache(1024)
def _digits(low: int, high: int, n: int, n_decimals: int) -> Tree:
    """Return a tree of the texts of n digits from `low` to `high`, the last ones decimals.

    The point stands before the decimals. Zeros at the end of the decimals may be left out.
    """
    if n == 0:
        return EMPTY
    start = [_POINT] if n == n_decimals else []
    tree = either(
        sequence(*start, parse(f"[{first}-{last}]"), _digits(least, most, n - 1, n_decimals))
        for first, last, least, most in split(low, high, 10 ** (n - 1))
    )
    return Repetition(tree, 0, 1) if n <= n_decimals and low == 0 else tree
