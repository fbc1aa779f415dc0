"""Streaming text: token ids are decoded as they arrive, up to a stop string."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpt2np.generation.options import GenerationOptions
from gpt2np.tokenizer import Tokenizer


class StopStrings:
    """Forwards streamed text up to the first stop string.

    Text that may be the beginning of a stop string is held back.

    Attributes:
        stop_text: the stop string that ended the text; None before a match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._strings = tuple(stops)
        self._buffer = ""
        # A stop string that ends in these first characters of the buffer does not count.
        self._n_passed_over = 0
        self.stop_text: str | None = None

    def push(self, piece: str, can_stop: bool = True) -> str:
        """Add a piece of text; return the text that can no longer be part of a stop string.

        Unless `can_stop`, a stop string that ends in the piece does not count.
        """
        if not self._strings:
            return piece
        text = self._buffer + piece
        n_over = self._n_passed_over if can_stop else len(text)
        matches = [
            (start, stop)
            for stop in self._strings
            if (start := text.find(stop, max(0, n_over - len(stop) + 1))) >= 0
        ]
        if matches:
            start, self.stop_text = min(matches)
            self._buffer = ""
            return text[:start]
        n_free = len(text) - max(_overlap(text, stop) for stop in self._strings)
        self._buffer, self._n_passed_over = text[n_free:], max(0, n_over - n_free)
        return text[:n_free]

    def finish(self) -> str:
        """End the text; return the text that was held back."""
        buffer, self._buffer = self._buffer, ""
        return buffer


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class StreamingDetokenizer:
    """The text of the token ids so far, up to a stop string.

    Text that may be the beginning of a stop string is held back.

    Attributes:
        pieces: one text for each id that is not skipped, and a last one for the text held back. A
            piece ends at a character boundary, and may be empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        options: GenerationOptions,
        eos_token_ids: Collection[int] = (),
        n_skipped: int = 0,
    ) -> None:
        """Create a detokenizer that skips `eos_token_ids` and `options.stop_token_ids`.

        It also skips the first `n_skipped` bytes, which belong to the prompt. Without a tokenizer,
        there is no text.
        """
        self._decoder = tokenizer.streaming_decoder(n_skipped) if tokenizer else None
        self._n_to_pass_over = options.min_new_tokens  # tokens before a stop string counts
        self._skipped_ids = {*eos_token_ids, *options.stop_token_ids}
        self._matcher = StopStrings(options.stop)
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def stop_text(self) -> str | None:
        """The stop string that the text has reached; None before."""
        return self._matcher.stop_text

    def push(self, token_id: int) -> None:
        """Add the text of a token id."""
        self._n_to_pass_over -= 1
        if self._decoder and token_id not in self._skipped_ids:
            self.pieces.append(self._push(self._decoder.push(token_id)))

    def finish(self) -> bool:
        """Add the text held back, up to a stop string; return whether there is one."""
        if self._decoder and not self.stop_text:
            self.pieces.append(self._push(self._decoder.finish()) + self._matcher.finish())
        return bool(self.stop_text)

    def _push(self, piece: str) -> str:
        return self._matcher.push(piece, can_stop=self._n_to_pass_over < 0)
