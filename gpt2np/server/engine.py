"""Requests for one model: places in the queue, timeouts, generation, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.generation.async_engine import AsyncEngine, Update
from gpt2np.generation.request import Request
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.server.metrics import Metrics
from gpt2np.server.options import ServerOptions


class QueueFullError(GPT2NPError):
    """The server takes no further request now."""


class RequestTimeoutError(GPT2NPError):
    """A request took longer than the server allows."""


@dataclass(eq=False)
class RunningRequest:
    """A request in progress.

    Attributes:
        engine: runs the request.
        n_sequences: number of places in the queue.
        prompts: the request of each prompt whose tokens are known.
        sequences: the sequences of each prompt.
        error: why the request was cancelled, if it was.
        timer: cancels the request after the server's timeout.
    """

    engine: Engine
    n_sequences: int
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
        """Return `array`: a hook, so that a running pass can be cancelled."""
        if self.error:
            raise self.error
        return array


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
        self._submitted: dict[int, float] = {}  # times of sequences, by id()
        self._runner = AsyncEngine(options.max_running, options.cache_bytes, self._on_step)

    def _on_step(self, scheduler: Scheduler, updates: Sequence[Update]) -> None:
        """Record a decode step."""
        name, metrics = self.lm.name, self._metrics
        metrics.observe_step(name, len(scheduler.running), len(scheduler.waiting))
        for update in updates:
            sequence, n = update.sequence, len(update.ids)
            seconds = time.perf_counter() - self._submitted[id(sequence)]
            metrics.observe_tokens(name, n)
            if n and n == len(sequence.ids):
                metrics.observe_first_token(name, seconds)
            if update.finish_reason:
                outcome = "error" if sequence.error else update.finish_reason
                metrics.observe_end(name, outcome, seconds)
                del self._submitted[id(sequence)]

    def start(self, n_sequences: int) -> RunningRequest:
        """Take places in the queue for a new request; `end` frees them.

        Raises:
            InvalidArgumentError: there are fewer places.
            QueueFullError: there are fewer free places.
        """
        if n_sequences > self._max_sequences:
            raise InvalidArgumentError(
                f"prompt and n ask for {n_sequences} sequences at a time, more than the server's "
                f"{self._max_sequences} places; send several requests"
            )
        n_taken = sum(running.n_sequences for running in self._running)
        if n_taken + n_sequences > self._max_sequences:
            raise QueueFullError(
                f"the server is busy: {n_taken} of {self._max_sequences} places are taken, and "
                f"this request needs {n_sequences}"
            )
        running = RunningRequest(self, n_sequences)
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
        """End a request's streams with an error before the next step."""
        running.error = error
        for sequence in running.all_sequences:
            sequence.cancel(error)

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
        self._submitted |= {id(sequence): now for sequence in sequences}
        async for updates in self._runner.run(self.lm.model, sequences, every_step):
            for update in updates:
                if update.finish_reason and update.sequence.error:
                    raise update.sequence.error
            yield updates
