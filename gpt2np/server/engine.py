"""Requests for one model: places in the queue, generation on the engine's thread, updates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.generation.async_engine import AsyncEngine, call_in
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence
from gpt2np.generation.streaming import Completion, TextStream
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel, Prompt
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
        stop_reason: see `Completion.stop_reason`.
    """

    index: int
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    stop_reason: str | int | None


@dataclass(eq=False)
class Job:
    """A request in progress.

    Attributes:
        engine: runs the request.
        n_sequences: number of places in the queue: sequences or beams.
        prompts: the prompts, each a text or token ids.
        n_prompt_tokens: number of tokens of the prompts, once they are known.
        streams: the streams of each prompt.
        searches: beam searches to call instead of running streams.
        error: why the request was cancelled, if it was.
        timer: cancels the request after the server's timeout.
    """

    engine: Engine
    n_sequences: int
    prompts: list[Prompt] = field(default_factory=list)
    n_prompt_tokens: int = 0
    streams: list[list[TextStream]] = field(default_factory=list)
    searches: list[Callable[[], Completion]] = field(default_factory=list)
    error: Exception | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def all_streams(self) -> list[TextStream]:
        """The streams of all prompts."""
        return [stream for group in self.streams for stream in group]

    def cancel(self, error: Exception) -> None:
        """End the streams or the beam search with an error, before the next decode step."""
        self.error = error
        self.engine.cancel(self.all_streams, error)

    def raise_if_cancelled(self, _: list[int], logits: Array) -> Array:
        """Return `logits`: a logits processor, so that a beam search can be cancelled.

        Raises:
            Exception: the error with which the request was cancelled.
        """
        if self.error:
            raise self.error
        return logits


class Engine:
    """Runs the requests for one model, and refuses requests for which the queue has no place.

    Attributes:
        lm: the model.
    """

    def __init__(
        self,
        lm: LanguageModel,
        metrics: Metrics,
        max_running: int,
        max_queued: int,
        cache_bytes: int | None,
        timeout: float,
    ) -> None:
        """Create an engine that runs `max_running` sequences at a time, while others wait.

        `cache_bytes` limits the KV caches of the batch; see `Scheduler`. Requests end after
        `timeout` seconds.
        """
        self.lm = lm
        self._metrics = metrics
        self._max_sequences = max_running + max_queued
        self._timeout = timeout
        self._jobs: set[Job] = set()  # changed in the event loop's thread only
        self._submitted: dict[int, float] = {}  # times of waiting sequences, by id()
        self._loop: asyncio.AbstractEventLoop  # that of the requests, which set it
        self._step_start = 0.0
        self._step_updates: list[tuple[Callable[[Update], None], Update]] = []  # with receivers
        self._runner = AsyncEngine(max_running, cache_bytes, self._on_step)

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
            seconds = max(0.0, self._step_start - submitted)
            self._metrics.observe_queue(self.lm.name, seconds)

    def start(self, n_sequences: int) -> Job:
        """Take places in the queue for a new job; `end` frees them.

        Raises:
            InvalidArgumentError: there are fewer places.
            QueueFullError: there are fewer free places.
        """
        if n_sequences > self._max_sequences:
            raise InvalidArgumentError(
                f"prompt and n ask for {n_sequences} sequences at a time, more than the server's "
                f"{self._max_sequences} places; send several requests"
            )
        n_taken = sum(job.n_sequences for job in self._jobs)
        if n_taken + n_sequences > self._max_sequences:
            raise QueueFullError(
                f"the server is busy: {n_taken} of {self._max_sequences} places are taken, and "
                f"this request needs {n_sequences}"
            )
        job = Job(self, n_sequences)
        error = RequestTimeoutError(f"the request took more than {self._timeout:g} seconds")
        loop = asyncio.get_running_loop()
        job.timer = loop.call_later(self._timeout, job.cancel, error)
        self._jobs.add(job)
        return job

    def end(self, job: Job) -> None:
        """Free the places of a job; cancel what still runs."""
        self._jobs.discard(job)
        if job.timer:
            job.timer.cancel()
        self._metrics.observe_prompts(self.lm.name, job.n_prompt_tokens)
        job.error = job.error or GPT2NPError("the request has ended")
        self.cancel(job.all_streams, None)

    def cancel(self, streams: Sequence[TextStream], error: Exception | None) -> None:
        """End streams before the next decode step, with an error if one is given."""
        for stream in streams:
            if stream.running:
                self._runner.cancel(stream, error)

    def cancel_all(self, error: Exception) -> None:
        """End all jobs with an error."""
        for job in self._jobs:
            job.cancel(error)

    def observe_beams(self, completion: Completion) -> None:
        """Record the result of a beam search."""
        for found in (completion, *completion.alternatives):
            self._metrics.observe_tokens(self.lm.name, len(found.ids), True, found.seconds)
            n_prompt, n_new = len(found.prompt_ids), len(found.ids)
            reason = found.finish_reason or "stop"
            self._metrics.observe_end(self.lm.name, n_prompt, n_new, reason, found.seconds)

    async def updates(self, job: Job, every_step: bool = True) -> AsyncIterator[list[Update]]:
        """Run the streams of a job; yield the updates that have arrived since the last time.

        Without `every_step`, each stream has one update, at its end.

        Raises:
            Exception: the error of a stream, or with which the job was cancelled.
        """
        if job.error:
            raise job.error
        streams, self._loop = job.all_streams, asyncio.get_running_loop()
        arrived, wake, submitted = list[Update](), asyncio.Event(), time.perf_counter()

        def add(update: Update) -> None:
            arrived.append(update)
            wake.set()

        def listen(index: int, stream: TextStream) -> None:
            n_ids, last = 0, submitted

            def notify(stream: TextStream) -> None:  # on the engine's thread
                nonlocal n_ids, last
                sequence, name = stream.sequence, self.lm.name
                ids, is_last = sequence.ids[n_ids:], not stream.running
                if not (ids or is_last):
                    return
                now = time.perf_counter()
                if ids:
                    self._metrics.observe_tokens(name, len(ids), n_ids == 0, now - last)
                if is_last:
                    self._record_start(sequence)
                    n_prompt, n_new = len(sequence.request.ids), len(sequence.ids)
                    outcome = "error" if sequence.error else sequence.finish_reason
                    self._metrics.observe_end(name, n_prompt, n_new, outcome, now - submitted)
                last = now
                if every_step or is_last:
                    logprobs, text = sequence.logprobs[n_ids:], stream.new_text()
                    reasons = sequence.finish_reason, stream.stop_reason
                    update = Update(index, text, ids, logprobs, *reasons)
                    self._step_updates.append((add, update))
                n_ids += len(ids)

            self._submitted[id(stream.sequence)] = submitted
            self._runner.add(stream, notify)

        for index, stream in enumerate(streams):
            listen(index, stream)
        n_running = len(streams)
        while n_running:
            await wake.wait()
            wake.clear()
            updates, arrived[:] = arrived[:], []
            n_running -= sum(update.finish_reason is not None for update in updates)
            for stream in streams:
                if not stream.running and stream.sequence.error:
                    raise stream.sequence.error
            yield updates


def _deliver(updates: Sequence[tuple[Callable[[Update], None], Update]]) -> None:
    for receive, update in updates:
        receive(update)
