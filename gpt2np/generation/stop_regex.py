"""Regular expressions that stop a streaming text.

This is a separate module because importing `regex` takes 9 ms, and few generations need it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import regex

from gpt2np.data.untrusted_regex import BRACKETS, compile_pattern, search_seconds, too_slow
from gpt2np.errors import InvalidArgumentError, short_repr

# Trial characters after the text: every anchor, such as \b and $, matches before one of them and
# fails before another.
_NEXT = ("x", " ", "\n")


class StopPatterns:
    """Forwards streamed text up to the first match of a stop string or stop regex.

    Text that may be the start of a match is held back. Patterns are searched in the whole text,
    so that `^` and look-behind keep their meaning. If the next character may undo a match, as with
    `cat\\b` or `$`, the match counts after this character or at the end. Atomic groups and
    possessive quantifiers are evaluated on the text so far.

    Attributes:
        stop_text: the text that matched; None before a match.
    """

    def __init__(self, stops: Sequence[str], patterns: Sequence[str]) -> None:
        self._patterns = [regex.compile(regex.escape(stop)) for stop in stops]
        self._patterns += [compile_stop_regex(pattern) for pattern in patterns]
        self._text = ""
        self._n_passed = 0  # characters
        self.stop_text: str | None = None

    def push(self, piece: str, can_stop: bool = True) -> str:
        """Add a piece of text; return the text that can no longer be part of a match.

        Unless `can_stop`, a match that begins in the piece does not count.

        Raises:
            InvalidArgumentError: a search takes too long. Afterwards the patterns are ignored.
        """
        self._text += piece
        if not can_stop:
            return self._pass_until(len(self._text))
        matches = self._matches()
        final = [match for match in matches if self._is_final(match)]
        if final:
            return self._stop_at(final)
        # A later match may begin in this text: a partial match, or one whose anchor at the end of
        # the text depends on the next character.
        possible = [self._search(pattern, self._text, partial=True) for pattern in self._patterns]
        for character in _NEXT:
            text = self._text + character
            possible += [self._search(pattern, text) for pattern in self._patterns]
        starts = [match.start() for match in [*matches, *possible] if match]
        return self._pass_until(min([*starts, len(self._text)]))

    def finish(self) -> str:
        """End the text; return the text held back, up to the first match."""
        if matches := self._matches():
            return self._stop_at(matches)
        return self._pass_until(len(self._text))

    def _matches(self) -> list[regex.Match[str]]:
        matches = [self._search(pattern, self._text) for pattern in self._patterns]
        return [match for match in matches if match]

    def _stop_at(self, matches: Sequence[regex.Match[str]]) -> str:
        first = min(matches, key=lambda match: match.start())
        self.stop_text = first.group()
        return self._pass_until(first.start())

    def _is_final(self, match: regex.Match[str]) -> bool:
        """Whether no further text can undo the match."""
        start = match.start()
        texts = (self._text + character for character in _NEXT)
        return all(self._call(match.re.match, text, start) for text in texts)

    def _search(
        self, pattern: regex.Pattern[str], text: str, partial: bool = False
    ) -> regex.Match[str] | None:
        return self._call(pattern.search, text, self._n_passed, partial=partial)

    def _call(
        self, search: Callable[..., regex.Match[str] | None], *args: Any, **kwargs: Any
    ) -> regex.Match[str] | None:
        """Call a search function with a time limit."""
        try:
            return search(*args, **kwargs, timeout=search_seconds(len(self._text)))
        except (TimeoutError, MemoryError) as error:
            listed = ", ".join(short_repr(pattern.pattern) for pattern in self._patterns)
            self._patterns.clear()  # also those of copies
            raise too_slow("stop_regex", listed, len(self._text)) from error

    def _pass_until(self, end: int) -> str:
        start, self._n_passed = self._n_passed, end
        return self._text[start:end]


@lru_cache(maxsize=64)
def compile_stop_regex(pattern: str) -> regex.Pattern[str]:
    """Compile a stop regex.

    Raises:
        InvalidArgumentError: the pattern is not a regular expression, is too large, has a negative
            look-ahead, which later text may undo, or matches the empty text.
    """
    if any(match["mark"] == "(?!" for match in regex.finditer(BRACKETS, pattern)):
        raise InvalidArgumentError(
            f"stop_regex {short_repr(pattern)} has a negative look-ahead, (?!…), which later text "
            "may undo; match the next character instead, as in foo[^b]",
            param="stop_regex",
        )
    compiled = compile_pattern(pattern, "stop_regex")
    try:
        matches_empty = compiled.match("", timeout=search_seconds(0))
    except (TimeoutError, MemoryError) as error:
        raise too_slow("stop_regex", short_repr(pattern), 0) from error
    if matches_empty:
        raise InvalidArgumentError(
            f"stop_regex {short_repr(pattern)} matches the empty text, which would end the "
            "generation at once; let it match at least one character",
            param="stop_regex",
        )
    return compiled
