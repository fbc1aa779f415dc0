"""Regular expressions that end a stream of text."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import regex

from gpt2np.errors import InvalidArgumentError, short_repr

_FOLLOWING = ("x", " ", "\n")  # between them, every anchor holds after one and not after another
_BRACKETS = regex.compile(r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<mark>\((?:\?!)?|\))")
_MOST_LOOKAHEADS = 20
_SECONDS = 2.0  # for one search, which takes microseconds but for patterns of exponential time


class StopPatterns:
    """Passes text on until a pattern matches; holds back what may be the start of a match.

    The same as `StopStrings`, for regular expressions of the `regex` library. A pattern sees the
    whole text, so `^` and lookbehind mean what they mean there. Where the next character may undo a
    match, as with `cat\\b` after "cat" or with `$`, it counts when that has come, or at the end; so
    does a negative lookahead, as in `foo(?!bar)`, when what has come can't become "bar". Atomic
    groups, possessive repetitions and a negative lookahead within another see only what has come.

    Attributes:
        found: the text that matched, None so far.
    """

    def __init__(self, stops: Sequence[str], patterns: Sequence[str]) -> None:
        self._patterns = [compiled(regex.escape(stop)) for stop in stops]
        self._patterns += [compiled(pattern) for pattern in patterns]
        self._undoing = {pattern: _undoing(pattern) for pattern in patterns}
        self._text = ""
        self._passed = 0  # characters that have been passed on
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that is now known to be wanted: from what was held back, and from `piece`.

        Raises:
            InvalidArgumentError: a search takes too long; all that follows is passed on.
        """
        self._text += piece
        matches = self._matches()
        certain = [match for match in matches if self._is_certain(match)]
        if certain:
            return self._stop(certain)
        starts = [match.start() for match in [*matches, *self._begun()]]
        return self._pass_until(min([*starts, len(self._text)]))

    def finish(self) -> str:
        """What was held back, now that nothing more comes, up to a match that is certain now.

        Raises:
            InvalidArgumentError: a search takes too long.
        """
        if matches := self._matches():
            return self._stop(matches)
        return self._pass_until(len(self._text))

    def _begun(self) -> list[regex.Match[str]]:
        """What may become a match: with more characters, or with an anchor behind the last one."""
        found = [self._search(pattern, self._text, partial=True) for pattern in self._patterns]
        for following in _FOLLOWING:
            text = self._text + following
            found += [self._search(pattern, text) for pattern in self._patterns]
        return [match for match in found if match]

    def _matches(self) -> list[regex.Match[str]]:
        found = [self._search(pattern, self._text) for pattern in self._patterns]
        return [match for match in found if match]

    def _stop(self, matches: Sequence[regex.Match[str]]) -> str:
        first = min(matches, key=lambda match: match.start())
        self.found = first.group()
        return self._pass_until(first.start())

    def _is_certain(self, match: regex.Match[str]) -> bool:
        """Whether there is a match in the same place whatever comes next."""
        texts = (self._text + following for following in _FOLLOWING)
        if not all(self._ask(match.re.match, text, match.start()) for text in texts):
            return False
        undoing = self._undoing.get(match.re.pattern, [])
        begun = (self._ask(p.match, self._text, match.start(), partial=True) for p in undoing)
        return not any(found and found.partial for found in begun)

    def _search(
        self, pattern: regex.Pattern[str], text: str, partial: bool = False
    ) -> regex.Match[str] | None:
        return self._ask(pattern.search, text, self._passed, partial=partial)

    def _ask(
        self, search: Callable[..., regex.Match[str] | None], *args: Any, **kwargs: Any
    ) -> regex.Match[str] | None:
        try:
            return search(*args, **kwargs, timeout=_SECONDS)
        except TimeoutError as error:
            patterns, self._patterns = self._patterns, []
            asked = ", ".join(repr(pattern.pattern) for pattern in patterns)
            raise InvalidArgumentError(
                f"a search for stop_regex took more than {_SECONDS} s in a text of "
                f"{len(self._text):,} characters: {asked}; repeat nothing that repeats, as (a+)+"
            ) from error

    def _pass_until(self, end: int) -> str:
        start, self._passed = self._passed, end
        return self._text[start:end]


def _undoing(pattern: str) -> list[regex.Pattern[str]]:
    """Patterns that have a partial match where a negative lookahead may yet undo one of `pattern`.

    They are `pattern` with one of its negative lookaheads turned, and with all: `(?!X)` into
    `(?=(?:X)(?!))`, which never holds, but needs more characters where an X has begun.
    """
    found = _negative_lookaheads(pattern)
    chosen = [[each] for each in found] + ([found] if len(found) > 1 else [])
    patterns = []
    for lookaheads in chosen:
        characters = list(pattern)
        for begin, end in lookaheads:
            characters[begin + len("(?")], characters[end] = "=(?:", ")(?!))"
        with suppress(regex.error, RecursionError):  # of brackets that are none, as in a comment
            patterns.append(regex.compile("".join(characters)))
    return patterns


def _negative_lookaheads(pattern: str) -> list[tuple[int, int]]:
    """Where each begins, and where its bracket closes."""
    found: list[tuple[int, int]] = []
    opened: list[tuple[int, str]] = []
    for bracket in _BRACKETS.finditer(pattern):
        if bracket["mark"] == ")" and opened:
            begin, mark = opened.pop()
            found += [(begin, bracket.start())] if mark == "(?!" else []
        elif bracket["mark"]:
            opened.append((bracket.start(), bracket["mark"]))
    return found


def compiled(pattern: str) -> regex.Pattern[str]:
    """The pattern, ready to search with.

    Raises:
        InvalidArgumentError: it is no regular expression, or it matches the empty text, which would
            end every generation before it starts, or it is too large.
    """
    try:
        result = regex.compile(pattern)
    except regex.error as error:
        raise InvalidArgumentError(
            f"stop_regex {pattern!r} is not a regular expression: {error}"
        ) from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise InvalidArgumentError(
            f"stop_regex {short_repr(pattern)} is too large: nested too deep, or repeated too often"
        ) from error
    if pattern.count("(?!") > _MOST_LOOKAHEADS:
        raise InvalidArgumentError(
            f"stop_regex {short_repr(pattern)} is too large: more than {_MOST_LOOKAHEADS} negative "
            f"lookaheads"
        )
    if result.match(""):
        raise InvalidArgumentError(
            f"stop_regex {pattern!r} matches the empty text, so it would stop at once; let it "
            f"match at least one character"
        )
    return result
