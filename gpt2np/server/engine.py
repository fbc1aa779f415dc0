"""Requests for one model: places in the queue, generation on the engine's thread, updates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from gpt2np.errors import GPT2NPError
from gpt2np.generation.async_engine import AsyncEngine, call_in
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence
from gpt2np.generation.streaming import TextStream
from gpt2np.language_model import LanguageModel
from gpt2np.server.metrics import Metrics


class QueueFullError(GPT2NPError):
    """The server takes no further request now."""


class RequestTimeoutError(GPT2NPError):
    """A request took longer than the server allows."""


@dataclass(frozen=True)
class Update:
    """What a decode step has added to one of the streams of a request.

    Attributes:
        index: the stream's index in the request.
        text: new text; ends at a character boundary.
        ids: new token ids.
        logprobs: the log probability of each of `ids`, if requested.
        finish_reason: why the stream has ended; None while the stream runs.
    """

    index: int
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None


class Engine:
    """Runs the requests for one model, and refuses requests for which the queue has no place.

    Attributes:
        lm: the model.
    """

    def __init__(
        self, lm: LanguageModel, metrics: Metrics, max_running: int, max_sequences: int
    ) -> None:
        """Create an engine for `max_sequences` sequences, of which `max_running` run at a time."""
        self.lm = lm
        self._metrics = metrics
        self._max_sequences = max_sequences
        self._n_sequences = 0  # changed in the event loop's thread only
        self._streams: set[TextStream] = set()
        self._submitted: dict[int, float] = {}  # times of waiting sequences, by id()
        self._loop: asyncio.AbstractEventLoop  # that of the requests, which set it
        self._step_start = 0.0
        self._step_updates: list[tuple[Callable[[Update], None], Update]] = []  # with receivers
        self._runner = AsyncEngine(max_running, self._on_step)

    def _on_step(self, scheduler: Scheduler) -> None:
        """Deliver the updates of a decode step together: waking the event loop takes time.

        Also record the step; a sequence that now runs waited until the step began.
        """
        updates, self._step_updates = self._step_updates, []
        if updates:
            call_in(self._loop, _deliver, updates)
        self._metrics.observe_step(self.lm, scheduler)
        for sequence in scheduler.running:
            self._record_start(sequence)
        self._step_start = time.perf_counter()

    def _record_start(self, sequence: RunningSequence) -> None:
        submitted = self._submitted.pop(id(sequence), None)
        if submitted is not None:
            self._metrics.observe_queue(max(0.0, self._step_start - submitted))

    def reserve(self, n: int) -> None:
        """Take places for n sequences; `release` frees them.

        Raises:
            QueueFullError: there are fewer free places.
        """
        if self._n_sequences + n > self._max_sequences:
            raise QueueFullError(
                f"the server is busy: {self._n_sequences} of {self._max_sequences} places are "
                f"taken, and this request needs {n}"
            )
        self._n_sequences += n

    def release(self, n: int) -> None:
        """Free the places of n sequences."""
        self._n_sequences -= n

    async def run(self, streams: Sequence[TextStream]) -> None:
        """Run streams to their end. Cancels the streams if the caller is cancelled.

        Raises:
            Exception: the error of a stream.
        """
        async for _ in self._updates(streams, every_step=False):
            pass

    async def updates(self, streams: Sequence[TextStream]) -> AsyncIterator[list[Update]]:
        """Run streams; yield the updates that have arrived since the last time.

        Cancels the streams if the caller stops early.

        Raises:
            Exception: the error of a stream.
        """
        async for updates in self._updates(streams, every_step=True):
            yield updates

    async def _updates(
        self, streams: Sequence[TextStream], every_step: bool
    ) -> AsyncIterator[list[Update]]:
        self._loop = asyncio.get_running_loop()
        arrived, wake, submitted = list[Update](), asyncio.Event(), time.perf_counter()

        def add(update: Update) -> None:
            arrived.append(update)
            wake.set()

        def listen(index: int, stream: TextStream) -> None:
            n_ids, last = 0, submitted

            def notify(stream: TextStream) -> None:  # on the engine's thread
                nonlocal n_ids, last
                sequence = stream.sequence
                ids, is_last = sequence.ids[n_ids:], not stream.running
                if not (ids or is_last):
                    return
                now = time.perf_counter()
                self._metrics.observe_tokens(len(ids), is_first=n_ids == 0, seconds=now - last)
                if is_last:
                    self._record_start(sequence)
                    self._metrics.observe_end(sequence, now - submitted)
                last = now
                if every_step or is_last:
                    logprobs = sequence.logprobs[n_ids:]
                    text, reason = stream.new_text(), sequence.finish_reason
                    update = Update(index, text, ids, logprobs, reason)
                    self._step_updates.append((add, update))
                n_ids += len(ids)

            self._submitted[id(stream.sequence)] = submitted
            self._runner.add(stream, notify)

        self._streams |= set(streams)
        for index, stream in enumerate(streams):
            listen(index, stream)
        n_running = len(streams)
        try:
            while n_running:
                await wake.wait()
                wake.clear()
                updates, arrived[:] = arrived[:], []
                n_running -= sum(update.finish_reason is not None for update in updates)
                for stream in streams:
                    if not stream.running and stream.sequence.error:
                        raise stream.sequence.error
                yield updates
        finally:
            self._streams -= set(streams)
            for stream in streams:
                if stream.running:
                    self._runner.cancel(stream)

    def cancel(self, streams: Iterable[TextStream], error: Exception) -> None:
        """End streams with an error, before the next decode step."""
        for stream in streams:
            self._runner.cancel(stream, error)

    def cancel_all(self, error: Exception) -> None:
        """End all streams with an error."""
        self.cancel(self._streams, error)


def _deliver(updates: Sequence[tuple[Callable[[Update], None], Update]]) -> None:
    for receive, update in updates:
        receive(update)
