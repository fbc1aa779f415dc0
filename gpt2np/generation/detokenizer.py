"""Streaming text: token ids are decoded as they arrive, up to a stop string."""

from __future__ import annotations

from collections.abc import Collection

from gpt2np.generation.options import GenerationOptions
from gpt2np.tokenizer import Tokenizer


class StreamingDetokenizer:
    """The text of the token ids so far, up to the first stop string.

    Text that may be the beginning of a stop string is held back.

    Attributes:
        pieces: one text for each id that is not skipped, and a last one for the text held back. A
            piece ends at a character boundary, and may be empty.
        stop_text: the stop string that ended the text; None before.
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
        self._stops = options.stop
        self._n_to_pass_over = options.min_new_tokens  # tokens before a stop string counts
        self._skipped_ids = {*eos_token_ids, *options.stop_token_ids}
        self._held = ""
        # A stop string that ends in these first characters of the text held back does not count.
        self._n_passed_over = 0
        self.pieces: list[str] = []
        self.stop_text: str | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def push(self, token_id: int) -> None:
        """Add the text of a token id."""
        self._n_to_pass_over -= 1
        if self._decoder and token_id not in self._skipped_ids:
            self.pieces.append(self._free(self._decoder.push(token_id)))

    def finish(self) -> bool:
        """Add the text held back, up to a stop string; return whether there is one."""
        if self._decoder and not self.stop_text:
            self.pieces.append(self._free(self._decoder.finish()) + self._held)
            self._held = ""
        return bool(self.stop_text)

    def _free(self, piece: str) -> str:
        """Add a piece of text; return the text that can no longer be part of a stop string."""
        if not self._stops:
            return piece
        text, self._held = self._held + piece, ""
        n_over = self._n_passed_over if self._n_to_pass_over < 0 else len(text)
        matches = [
            (start, stop)
            for stop in self._stops
            if (start := text.find(stop, max(0, n_over - len(stop) + 1))) >= 0
        ]
        if matches:
            start, self.stop_text = min(matches)
            return text[:start]
        n_free = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held, self._n_passed_over = text[n_free:], max(0, n_over - n_free)
        return text[:n_free]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
