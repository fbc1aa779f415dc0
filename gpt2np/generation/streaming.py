"""Streams: texts in progress, whose pieces a loop reads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.completion import Completion
from gpt2np.generation.request import Request
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import RunningSequence, start_sequences
from gpt2np.model import GPT2

__all__ = ["TextStream"]


class _Steps:
    """The decode steps of one prompt's streams, which run in one batch. Threads take turns.

    Attributes:
        lock: held while a stream is read.
        is_running: whether a step is running.
    """

    def __init__(self, model: GPT2, sequences: Sequence[RunningSequence]) -> None:
        self.model = model
        self.lock = threading.RLock()
        self.is_running = False
        # Keep the KV cache of a single text, because a chat reuses it for the next answer.
        self._scheduler = Scheduler(model, free_caches=len(sequences) > 1)
        for sequence in sequences:  # now, so that `give_up` finds it before the first step
            self._scheduler.add(sequence)

    def run(self) -> None:
        """Run one step, with the lock held; an exception of the step ends all sequences."""
        try:
            self.is_running = True
            self._scheduler.step()
        finally:
            self.is_running = False

    def give_up(self, sequence: RunningSequence) -> None:
        """Leave a sequence to another scheduler."""
        with self.lock:
            self._scheduler.remove(sequence)


class TextStream(Iterator[str]):
    """A continuation in progress: an iterator over the pieces of its text.

    A piece ends at a character boundary and contains no part of a stop text. The joined pieces
    equal `completion.text`. `async for` runs the streams of a model in one batch on a background
    thread. To run streams in one batch without asyncio, do not iterate; instead, add each stream's
    `sequence` to a `gpt2np.generation.scheduler.Scheduler`.

    An exception while a stream is read, such as Ctrl-C, ends all streams of the prompt; they keep
    the text so far. Any thread or task may cancel a stream, but for a stream in a Scheduler of
    another thread, call `stream.sequence.cancel`. Different threads may read different streams,
    even streams of the same prompt.
    """

    def __init__(self, sequence: RunningSequence, steps: _Steps) -> None:
        """Create a stream; use `LanguageModel.stream` instead."""
        self.sequence = sequence
        self._steps = steps
        self._is_async = False  # whether `async for` reads, or has read, the stream

    def __repr__(self) -> str:
        state = self.sequence.finish_reason or "running"
        text = self.sequence.request.text + self.sequence.text
        end = text if len(text) <= 60 else f"…{text[-59:]}"
        return f"<TextStream of {len(self.sequence.ids)} new tokens, {state}: {end!r}>"

    def _repr_html_(self) -> str:
        """Return the text so far, for notebooks."""
        return self.completion._repr_html_()

    @property
    def running(self) -> bool:
        """Whether the generation is still running."""
        return self.sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """The result of the generation so far."""
        return self.sequence.completion

    def __next__(self) -> str:
        with self._steps.lock:
            n_read = self.sequence.n_read
            try:
                while True:
                    if piece := self.new_text():
                        return piece
                    if not self.running:
                        break
                    self._check_reader()
                    self._steps.run()
            except BaseException:  # also Ctrl-C: the caller has not received the piece
                self.sequence.n_read = n_read
                raise
        if self.sequence.error:
            raise self.sequence.error
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[str]:
        from gpt2np.generation.async_engine import engine_of

        self._check_reader()
        self._is_async = True
        self._steps.give_up(self.sequence)
        updates = engine_of(self._steps.model).run(self._steps.model, [self.sequence])
        async with aclosing(updates):
            async for new in updates:
                for update in new:
                    if update.text:
                        yield update.text

    def _check_reader(self) -> None:
        if self._is_async and self.running:
            raise InvalidArgumentError(
                "`async for` reads this stream, and ends it when the loop ends, also by `break`; "
                "read each stream in one loop"
            )

    def new_text(self) -> str:
        """Return the text added since the last call; may be empty."""
        return self.sequence.new_text()

    def cancel(self) -> str:
        """End the generation; return the text added since the last call of `new_text`.

        If a reader is waiting for the next token, the generation ends after that token. The reader
        then gets the new text, and `cancel` returns "". Later calls have no effect.
        """
        if self.sequence.is_cancelled:
            return ""
        self.sequence.cancel()
        if self._is_async or self._steps.is_running:  # of another thread, or a callback cancels
            return ""
        with self._steps.lock:
            self.sequence.end("cancelled")
            return self.new_text()


def start_streams(model: GPT2, request: Request) -> list[TextStream]:
    """Return one stream per continuation of a request; the prompt is computed once for all."""
    sequences = start_sequences(model, request)
    steps = _Steps(model, sequences)
    return [TextStream(sequence, steps) for sequence in sequences]
