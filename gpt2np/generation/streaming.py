"""Streams: texts in progress, whose pieces a loop reads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing
from inspect import GEN_RUNNING, getgeneratorstate

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.completion import Completion
from gpt2np.generation.scheduler import Scheduler, drive
from gpt2np.generation.sequence import RunningSequence

__all__ = ["TextStream"]


class TextStream(Iterator[str]):
    """A continuation in progress: an iterator over the pieces of its text.

    A piece ends at a character boundary and contains no part of a stop string. The joined pieces
    equal `completion.text`. `async for` runs the streams of a model in one batch on a background
    thread. To run streams in one batch without asyncio, do not iterate; instead, add each stream's
    `sequence` to a `gpt2np.generation.scheduler.Scheduler`.

    An exception in a decode step, such as Ctrl-C, ends the stream, which keeps the text so far. Any
    thread or task may cancel a stream, but for a stream in a Scheduler of another thread, call
    `stream.sequence.cancel`.
    """

    def __init__(self, sequence: RunningSequence) -> None:
        """Create a stream; use `LanguageModel.stream` instead."""
        self.sequence = sequence
        self._steps = _steps(sequence)
        self._lock = threading.RLock()  # held while a thread reads
        self._is_async = False  # whether `async for` reads, or has read, the stream

    @property
    def running(self) -> bool:
        """Whether the generation is still running."""
        return self.sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """The result of the generation so far."""
        return self.sequence.completion

    def __next__(self) -> str:
        with self._lock:
            self._check_reader()
            n_read = self.sequence.n_read
            try:
                while not (piece := self.new_text()) and self.running:
                    next(self._steps)
                if piece:
                    return piece
            except BaseException as error:  # also Ctrl-C: the caller has not received the piece
                self.sequence.n_read = n_read
                self.sequence.interrupt(error)
                raise
        if self.sequence.error:
            raise self.sequence.error
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[str]:
        from gpt2np.generation.async_engine import engine_of

        self._check_reader()
        self._is_async = True
        with self._lock:  # after the step of another thread
            model = self.sequence.model
            updates = engine_of(model).run(model, [self.sequence])
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
        is_stepping = getgeneratorstate(self._steps) == GEN_RUNNING  # or a callback cancels
        if self._is_async or is_stepping:
            return ""
        with self._lock:
            self.sequence.end("cancelled")
            return self.new_text()


def _steps(sequence: RunningSequence) -> Generator[object, None, None]:
    """Run a sequence alone. Its KV cache stays, because a chat reuses it for the next answer."""
    yield from drive(Scheduler(sequence.model, free_caches=False), [sequence])
