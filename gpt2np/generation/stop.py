"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on until one of `stops` is complete; holds back what may be the start of one.

    No character of a stop string gets through, also when it arrives in several pieces, and nothing
    is held back longer than needed.

    Attributes:
        found: the stop string that ended the text, None so far.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that is now known to be wanted: from what was held back, and from `piece`."""
        text = self._held + piece
        places = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if places:
            start, self.found = min(places)
            self._held = ""
            return text[:start]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
