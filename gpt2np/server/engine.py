"""Requests for one model: places in the queue, timeouts, generation, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.generation.async_engine import AsyncEngine, Update
from gpt2np.generation.completion import Completion
from gpt2np.generation.request import Request
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.server.metrics import Metrics
from gpt2np.server.options import ServerOptions
from gpt2np.server.protocol import MAX_STEERED_SEQUENCES


class QueueFullError(GPT2NPError):
    """The server takes no further request now."""


class RequestTimeoutError(GPT2NPError):
    """A request took longer than the server allows."""


@dataclass(eq=False)
class RunningRequest:
    """A request in progress.

    Attributes:
        engine: runs the request.
        n_sequences: number of places in the queue: sequences or beams.
        is_steered: whether the request has interventions, so that each sequence runs alone.
        prompts: the request of each prompt whose tokens are known.
        sequences: the sequences of each prompt; none for a beam search.
        error: why the request was cancelled, if it was.
        timer: cancels the request after the server's timeout.
    """

    engine: Engine
    n_sequences: int
    is_steered: bool = False
    prompts: list[Request] = field(default_factory=list)
    sequences: list[list[RunningSequence]] = field(default_factory=list)
    error: Exception | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def n_prompt_tokens(self) -> int:
        """Number of tokens of `prompts`."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    @property
    def all_sequences(self) -> list[RunningSequence]:
        """The sequences of all prompts."""
        return [sequence for group in self.sequences for sequence in group]

    def raise_if_cancelled(self, _: object, array: Array) -> Array:
        """Return `array`: a logits processor or a hook, so that a running pass can be cancelled."""
        if self.error:
            raise self.error
        return array


@dataclass
class _Times:
    """When a sequence was submitted, and when it got its latest tokens."""

    submitted: float
    latest: float
    is_waiting: bool = True


class Engine:
    """Runs the requests for one model, and refuses requests for which the queue has no place.

    Attributes:
        lm: the model.
        options: the server's options.
    """

    def __init__(self, lm: LanguageModel, metrics: Metrics, options: ServerOptions) -> None:
        self.lm, self.options = lm, options
        self._metrics = metrics
        self._max_sequences = options.max_running + options.max_queued
        self._running: set[RunningRequest] = set()  # changed in the event loop's thread only
        self._times: dict[int, _Times] = {}  # of sequences, by id()
        self._step_start = 0.0
        self._runner = AsyncEngine(options.max_running, options.cache_bytes, self._on_step)

    def _on_step(self, scheduler: Scheduler, updates: Sequence[Update]) -> None:
        """Record a decode step; a sequence that now runs waited until the step began."""
        now = time.perf_counter()
        for sequence in (*scheduler.running, *(update.sequence for update in updates)):
            times = self._times[id(sequence)]
            if times.is_waiting:
                times.is_waiting = False
                seconds = max(0.0, self._step_start - times.submitted)
                self._metrics.observe_queue(self.lm.name, seconds)
        for update in updates:
            self._record(update, now)
        self._metrics.observe_step(self.lm, scheduler)
        self._step_start = time.perf_counter()

    def _record(self, update: Update, now: float) -> None:
        sequence, name = update.sequence, self.lm.name
        times, n_new = self._times[id(sequence)], len(sequence.ids)
        if n := len(update.ids):
            self._metrics.observe_tokens(name, n, n == n_new, now - times.latest)
        times.latest = now
        if update.finish_reason:
            outcome = "error" if sequence.error else update.finish_reason
            self._metrics.observe_end(
                name, len(sequence.request.ids), n_new, outcome, now - times.submitted
            )
            del self._times[id(sequence)]

    def start(self, n_sequences: int, is_steered: bool = False) -> RunningRequest:
        """Take places in the queue for a new request; `end` frees them.

        Raises:
            InvalidArgumentError: there are fewer places.
            QueueFullError: there are fewer free places, or too many sequences with interventions.
        """
        if n_sequences > self._max_sequences:
            raise InvalidArgumentError(
                f"prompt and n ask for {n_sequences} sequences at a time, more than the server's "
                f"{self._max_sequences} places; send several requests"
            )
        most = MAX_STEERED_SEQUENCES
        n_steered = sum(running.n_sequences for running in self._running if running.is_steered)
        if is_steered and n_steered + n_sequences > most:
            raise QueueFullError(
                f"the server is busy: {n_steered} of {most} sequences with interventions are "
                f"running, and this request needs {n_sequences}"
            )
        n_taken = sum(running.n_sequences for running in self._running)
        if n_taken + n_sequences > self._max_sequences:
            raise QueueFullError(
                f"the server is busy: {n_taken} of {self._max_sequences} places are taken, and "
                f"this request needs {n_sequences}"
            )
        running = RunningRequest(self, n_sequences, is_steered)
        timeout, loop = self.options.timeout, asyncio.get_running_loop()
        error = RequestTimeoutError(f"the request took more than {timeout:g} seconds")
        running.timer = loop.call_later(timeout, self.cancel, running, error)
        self._running.add(running)
        return running

    def end(self, running: RunningRequest) -> None:
        """Free the places of a request; cancel what still runs."""
        self._running.discard(running)
        if running.timer:
            running.timer.cancel()
        self._metrics.observe_prompts(self.lm.name, running.n_prompt_tokens)
        running.error = running.error or GPT2NPError("the request has ended")
        for sequence in running.all_sequences:
            sequence.cancel()

    def cancel(self, running: RunningRequest, error: Exception) -> None:
        """End a request's streams, or its beam search, with an error before the next step."""
        running.error = error
        for sequence in running.all_sequences:
            sequence.cancel(error)

    def cancel_all(self, error: Exception) -> None:
        for running in self._running:
            self.cancel(running, error)

    def observe_beams(self, completion: Completion) -> None:
        """Record the result of a beam search."""
        for found in (completion, *completion.alternatives):
            self._metrics.observe_tokens(self.lm.name, len(found.ids), True, found.seconds)
            n_prompt, n_new = len(found.prompt_ids), len(found.ids)
            reason = found.finish_reason or "stop"
            self._metrics.observe_end(self.lm.name, n_prompt, n_new, reason, found.seconds)

    async def updates(
        self, running: RunningRequest, every_step: bool = True
    ) -> AsyncIterator[list[Update]]:
        """Run the streams of a request; yield the updates that have arrived since the last time.

        Without `every_step`, each stream has one update, at its end.

        Raises:
            Exception: the error of a stream, or with which the request was cancelled.
        """
        if running.error:
            raise running.error
        sequences, now = running.all_sequences, time.perf_counter()
        self._times |= {id(sequence): _Times(now, now) for sequence in sequences}
        async for updates in self._runner.run(self.lm.model, sequences, every_step):
            for update in updates:
                if update.finish_reason and update.sequence.error:
                    raise update.sequence.error
            yield updates
