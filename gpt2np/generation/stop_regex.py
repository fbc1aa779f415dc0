"""Regular expressions that end a stream of text."""

from collections.abc import Sequence

import regex

from gpt2np.errors import InvalidArgumentError


class StopPatterns:
    """Passes text on until a pattern matches; holds back what may be the start of a match.

    The same as `StopStrings`, for regular expressions of the `regex` library. A pattern sees the
    whole text, so `^`, `\\b` and lookbehind mean what they mean there.

    Attributes:
        found: the text that matched, None so far.
    """

    def __init__(self, stops: Sequence[str], patterns: Sequence[str]) -> None:
        self._patterns = [compiled(regex.escape(stop)) for stop in stops]
        self._patterns += [compiled(pattern) for pattern in patterns]
        self._text = ""
        self._passed = 0  # characters that have been passed on
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that is now known to be wanted: from what was held back, and from `piece`."""
        self._text += piece
        matches = [match for pattern in self._patterns if (match := self._search(pattern))]
        if matches:
            first = min(matches, key=lambda match: match.start())
            self.found = first.group()
            return self._pass_until(first.start())
        begun = [self._search(pattern, partial=True) for pattern in self._patterns]
        return self._pass_until(min([m.start() for m in begun if m] + [len(self._text)]))

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        return self._pass_until(len(self._text))

    def _search(
        self, pattern: regex.Pattern[str], partial: bool = False
    ) -> regex.Match[str] | None:
        return pattern.search(self._text, self._passed, partial=partial)

    def _pass_until(self, end: int) -> str:
        start, self._passed = self._passed, end
        return self._text[start:end]


def compiled(pattern: str) -> regex.Pattern[str]:
    """The pattern, ready to search with.

    Raises:
        InvalidArgumentError: it is no regular expression, or it matches the empty text, which would
            end every generation before it starts.
    """
    try:
        result = regex.compile(pattern)
    except regex.error as error:
        raise InvalidArgumentError(
            f"stop_regex {pattern!r} is not a regular expression: {error}"
        ) from error
    if result.match(""):
        raise InvalidArgumentError(
            f"stop_regex {pattern!r} matches the empty text, so it would stop at once; let it "
            f"match at least one character"
        )
    return result
