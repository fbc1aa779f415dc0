"""Stop strings that end a streaming text."""

from collections.abc import Sequence


class StopStrings:
    """Forwards streamed text up to the first stop string.

    Text that may be the beginning of a stop string is held back.

    Attributes:
        stop_text: the stop string that ended the text; None before a match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""
        self.stop_text: str | None = None

    def push(self, piece: str) -> str:
        """Add a piece of text; return the text that can no longer be part of a stop string."""
        if not self._stops:
            return piece
        text = self._buffer + piece
        matches = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if matches:
            start, self.stop_text = min(matches)
            self._buffer = ""
            return text[:start]
        n_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._buffer = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def finish(self) -> str:
        """End the text; return the text that was held back."""
        buffer, self._buffer = self._buffer, ""
        return buffer


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
