"""Regular expressions from strangers, with limits on size and time.

The `regex` package expands counted repetitions when it compiles a pattern, and takes exponential
time for some searches. So the size is checked before compiling, and each search has a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import regex

from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.limits import how_to_raise, limits

BRACKETS = r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<mark>\((?:\?!)?|\))"
"""Pattern of an escape, a set, or a bracket; `mark` is the bracket, and "(?!" for look-ahead."""

_SYNTAX = regex.compile(rf"{BRACKETS}|\{{(?P<least>\d*)(?:,(?P<most>\d*))?\}}|.")
_UNUSUAL = r"\(\?(?:#|[\w-]*[x1])"  # comments, verbose mode, nested sets (V1)
_RECURSION = r"\(\?(?:R|[+-]?\d+|&\w+|P>\w+)\)"
_EMPTY_GROUP_SIZE = 10  # compiling n empty groups takes a time of n²
_TEXT_UNIT = 100_000  # characters


def check_length(pattern: str, name: str) -> None:
    """Raise InvalidArgumentError for a pattern, called `name`, with too many characters."""
    longest = limits().max_pattern_characters
    if len(pattern) > longest:
        raise _invalid(
            name,
            pattern,
            f"is too large: more than {longest:,} characters; "
            f"{how_to_raise('max_pattern_characters')}",
        )


def check_sizes(patterns: Sequence[str], name: str) -> None:
    """Raise InvalidArgumentError for patterns, called `name`, that are too large together."""
    for pattern in patterns:
        check_length(pattern, name)
    largest = limits().max_pattern_characters
    try:
        is_small = sum(map(_expanded_size, patterns)) <= largest
    except ValueError:  # a count of thousands of digits
        is_small = False
    if not is_small:
        raise InvalidArgumentError(
            f"{{{name}}} {{0}} is too large: more than {largest:,} characters, with repetitions "
            "expanded; use smaller counts",
            ", ".join(map(short_repr, patterns[:9])),
            **{name: patterns},
        )


def compile_pattern(pattern: str, name: str) -> regex.Pattern[str]:
    """Compile a pattern, called `name` in errors.

    Raises InvalidArgumentError if the pattern is not a regular expression, is recursive, or exceeds
    `Limits.max_pattern_characters` with counted repetitions expanded.
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


def _invalid(name: str, pattern: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{{{name}}} {{{name}.value}} {{0}}", problem, **{name: pattern})


def search_seconds(n_characters: int) -> float:
    """Return the time limit for a search in a text of `n_characters`."""
    return limits().max_pattern_seconds * (1 + n_characters / _TEXT_UNIT)


def too_slow(name: str, patterns: str, n_characters: int) -> InvalidArgumentError:
    """Return the error for a search that took too long or too much memory."""
    return InvalidArgumentError(
        f"a search for {{{name}}} took more than {search_seconds(n_characters):.2g} s or all "
        f"memory in a text of {n_characters:,} characters: {{0}}; avoid nested repetition, as in "
        "(a+)+",
        patterns,
        **{name: patterns},
    )


def _expanded_size(pattern: str) -> int:
    """Return about how many characters and sets a pattern has with its repetitions expanded."""
    sizes, last = [0], 0  # of each open group, and of the last item
    if regex.search(_UNUSUAL, pattern):  # then as if all repetitions were nested
        return len(pattern) * math.prod(int(n) or 1 for n in regex.findall(r"\d+", pattern))
    for match in _SYNTAX.finditer(pattern):
        if match["mark"] == ")" and len(sizes) > 1:
            last = sizes.pop() or _EMPTY_GROUP_SIZE
        elif match["mark"]:
            sizes.append(last := 0)
            continue
        elif match["least"] is not None:
            last *= max(int(match["most"] or match["least"] or 1) - 1, 0)
        else:
            last = 1
        sizes[-1] += last
    return sum(sizes)
