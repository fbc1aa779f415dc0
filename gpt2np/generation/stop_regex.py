"""Regular expressions that stop a streaming text.

This is a separate module because importing `regex` takes 9 ms, and few generations need it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import process_time
from typing import Any

import regex

from gpt2np.data.untrusted_regex import BRACKETS, compile_pattern, search_seconds, too_slow
from gpt2np.errors import InvalidArgumentError, short_repr

# Trial characters after the text: every anchor, such as \b and $, matches before one of them and
# fails before another.
_NEXT = ("x", " ", "\n")
_MAX_LOOKAHEADS = 20


class StopPatterns:
    """Forwards streamed text up to the first match of a stop string or stop regex.

    Text that may be the start of a match is held back. Patterns are searched in the whole text,
    so that `^` and look-behind keep their meaning. If the next character may undo a match, as with
    `cat\\b` or `$`, the match counts after this character or at the end. A match of
    `foo(?!bar)` counts as soon as "bar" can't follow. Atomic groups, possessive quantifiers and
    nested negative look-aheads are evaluated on the text so far.

    Attributes:
        stop_text: the text that matched; None before a match.
    """

    def __init__(self, stops: Sequence[str], patterns: Sequence[str]) -> None:
        self._patterns = [regex.compile(regex.escape(stop)) for stop in stops]
        self._patterns += [compile_stop_regex(pattern) for pattern in patterns]
        self._vetoes = {pattern: _veto_patterns(pattern) for pattern in patterns}
        self._text = ""
        self._n_passed = 0  # characters
        self.stop_text: str | None = None

    def push(self, piece: str) -> str:
        """Add a piece of text; return the text that can no longer be part of a match.

        Raises:
            InvalidArgumentError: a search takes too long. Afterwards the patterns are ignored.
        """
        self._set_deadline()
        self._text += piece
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
        self._set_deadline()
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
        if not all(self._call(match.re.match, text, start) for text in texts):
            return False
        vetoes = self._vetoes.get(match.re.pattern, [])
        begun = (self._call(veto.match, self._text, start, partial=True) for veto in vetoes)
        return not any(veto and veto.partial for veto in begun)

    def _search(
        self, pattern: regex.Pattern[str], text: str, partial: bool = False
    ) -> regex.Match[str] | None:
        return self._call(pattern.search, text, self._n_passed, partial=partial)

    def _set_deadline(self) -> None:
        self._deadline = process_time() + search_seconds(len(self._text))

    def _call(
        self, search: Callable[..., regex.Match[str] | None], *args: Any, **kwargs: Any
    ) -> regex.Match[str] | None:
        """Call a search function; all searches after one piece of text share a time limit."""
        try:
            timeout = self._deadline - process_time()
            if timeout <= 0:
                raise TimeoutError
            return search(*args, **kwargs, timeout=timeout)
        except (TimeoutError, MemoryError) as error:
            listed = ", ".join(short_repr(pattern.pattern) for pattern in self._patterns)
            self._patterns.clear()  # also those of copies
            raise too_slow("stop_regex", listed, len(self._text)) from error

    def _pass_until(self, end: int) -> str:
        start, self._n_passed = self._n_passed, end
        return self._text[start:end]


def _veto_patterns(pattern: str) -> list[regex.Pattern[str]]:
    """Return regexes whose partial match means that further text may undo a match of `pattern`.

    In each copy of `pattern`, `(?=(?:X)(?!))` replaces one negative look-ahead `(?!X)`; in the last
    copy, all. The replacement matches only partially: as long as further text may complete X.
    """
    lookaheads = _negative_lookaheads(pattern)
    selections = [[lookahead] for lookahead in lookaheads]
    selections += [lookaheads] if len(lookaheads) > 1 else []
    patterns = []
    for selection in selections:
        characters = list(pattern)
        for start, end in selection:
            characters[start + len("(?")], characters[end] = "=(?:", ")(?!))"
        with suppress(regex.error, RecursionError):  # a bracket was inside a comment
            patterns.append(regex.compile("".join(characters)))
    return patterns


def _negative_lookaheads(pattern: str) -> list[tuple[int, int]]:
    """Return the offsets of the opening and closing bracket of each negative look-ahead."""
    lookaheads: list[tuple[int, int]] = []
    opened: list[tuple[int, str]] = []
    for bracket in regex.finditer(BRACKETS, pattern):
        if bracket["mark"] == ")" and opened:
            start, mark = opened.pop()
            lookaheads += [(start, bracket.start())] if mark == "(?!" else []
        elif bracket["mark"]:
            opened.append((bracket.start(), bracket["mark"]))
    return lookaheads


def compile_stop_regex(pattern: str) -> regex.Pattern[str]:
    """Compile a stop regex.

    Raises:
        InvalidArgumentError: the pattern is not a regular expression, is too large, or matches the
            empty text, which would end every generation at once.
    """
    if pattern.count("(?!") > _MAX_LOOKAHEADS:
        raise InvalidArgumentError(
            f"{{stop_regex}} {{stop_regex.value}} is too large: more than {_MAX_LOOKAHEADS} "
            "negative look-aheads",
            stop_regex=pattern,
        )
    compiled = compile_pattern(pattern, "stop_regex")
    try:
        matches_empty = compiled.match("", timeout=search_seconds(0))
    except (TimeoutError, MemoryError) as error:
        raise too_slow("stop_regex", short_repr(pattern), 0) from error
    if matches_empty:
        raise InvalidArgumentError(
            "{stop_regex} {stop_regex.value} matches the empty text, which would end the "
            "generation at once; let it match at least one character",
            stop_regex=pattern,
        )
    return compiled
