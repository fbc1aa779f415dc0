"""Regular expressions from strangers, with limits on size and time.

The `regex` package expands counted repetitions when it compiles a pattern, and takes exponential
time for some searches. So the size is checked before compiling, and each search has a time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import regex

from gpt2np.errors import InvalidArgumentError, short_repr

BRACKETS = r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<mark>\((?:\?!)?|\))"
"""Pattern of an escape, a set, or a bracket; `mark` is the bracket, and "(?!" for look-ahead."""

_RECURSION = r"\(\?(?:R|[+-]?\d+|&\w+|P>\w+)\)"
_find_counts = regex.compile(r"\{(\d*),?(\d*)\}").findall

_MAX_CHARACTERS = 100_000
_MAX_COUNT = 9999  # of a repetition; compiling n empty groups takes a time of n²
_MAX_EXPANDED = 2_000_000  # characters, as if all counted repetitions were nested
_MAX_SECONDS = 2.0  # of a search, and the same time again for each _TEXT_UNIT
_TEXT_UNIT = 100_000  # characters


def check_length(pattern: str, name: str) -> None:
    """Raise InvalidArgumentError for a pattern, called `name`, with too many characters."""
    if len(pattern) > _MAX_CHARACTERS:
        raise _invalid(name, pattern, f"is too large: more than {_MAX_CHARACTERS:,} characters")


def check_sizes(patterns: Sequence[str], name: str) -> None:
    """Raise InvalidArgumentError for patterns, called `name`, that are too large together."""
    check_length("".join(patterns), name)
    sizes = [len(pattern) * prod(_counts(pattern)) for pattern in patterns]
    if any(max(_counts(pattern)) > _MAX_COUNT for pattern in patterns) or (
        sum(sizes) > _MAX_EXPANDED
    ):
        text = ", ".join(patterns[:9])
        raise _invalid(name, text, "is too large with repetitions expanded; use smaller counts")


def compile_pattern(pattern: str, name: str) -> regex.Pattern[str]:
    """Compile a pattern, called `name` in errors.

    Raises InvalidArgumentError if the pattern is not a regular expression, is recursive, or is too
    large with counted repetitions expanded.
    """
    check_sizes([pattern], name)
    try:
        if regex.search(_RECURSION, pattern):
            raise RecursionError
        return regex.compile(pattern)
    except regex.error as error:
        raise _invalid(name, pattern, f"is not a regular expression: {error}") from error
    except (RecursionError, MemoryError, OverflowError) as error:
        problem = "is too large: it is recursive or nests too deep"
        raise _invalid(name, pattern, problem) from error


def search_seconds(n_characters: int) -> float:
    """Return the time limit for a search in a text of `n_characters`."""
    return _MAX_SECONDS * (1 + n_characters / _TEXT_UNIT)


def too_slow(name: str, patterns: str, n_characters: int) -> InvalidArgumentError:
    """Return the error for a search that took too long or too much memory."""
    return InvalidArgumentError(
        f"a search for {name} took more than {search_seconds(n_characters):.2g} s or all memory in "
        f"a text of {n_characters:,} characters: {patterns}; avoid nested repetition, as in (a+)+",
        param=name if name.isidentifier() else None,
    )


def _counts(pattern: str) -> list[int]:
    """Return the counts of repetitions, and 1; a count of many digits as _MAX_COUNT + 1."""
    counts = [1]
    for least, most in _find_counts(pattern):
        digits = (most or least or "1").lstrip("0") or "1"
        counts.append(int(digits) if len(digits) < 6 else _MAX_COUNT + 1)
    return counts


def _invalid(name: str, pattern: str, problem: str) -> InvalidArgumentError:
    param = name if name.isidentifier() else None  # else words, such as "the pattern"
    return InvalidArgumentError(f"{name} {short_repr(pattern)} {problem}", param=param)
