"""Requests for one model: places in the queue, timeouts, threads, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any, ParamSpec, TypeVar
from weakref import WeakMethod

from fastapi import Request as HTTPRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from gpt2np.chat.template import ChatTemplate
from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.generation.async_engine import AsyncEngine, Update
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.server.options import ServerOptions

P = ParamSpec("P")
T = TypeVar("T")

PREPARATION = ThreadPoolExecutor(1, "gpt2np-preparation")  # short work, such as encoding a prompt
LONG_WORK = ThreadPoolExecutor(1, "gpt2np-long-work")  # constraints, chats, teaching
TOKENIZATION = ThreadPoolExecutor(1, "gpt2np-tokenization")  # may take seconds
INSPECTION = ThreadPoolExecutor(1, "gpt2np-inspection")  # takes up to half a minute

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class UnavailableError(GPT2NPError):
    """The server cannot take a request now."""


class RequestTimeoutError(GPT2NPError):
    """A request took longer than the server allows."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request took more than {seconds:g} seconds")


async def run_on(
    thread: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function on a thread, after the calls that wait there.

    The call is never made if it still waits when its request is cancelled.
    """
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(thread, call)


async def answer(request: HTTPRequest, work: Awaitable[T], seconds: float) -> T:
    """Await work, but cancel it when the client disconnects, or after some seconds."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({task, watcher}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watcher.done():
            raise HTTPException(499, "the client has disconnected")
        raise RequestTimeoutError(seconds)
    finally:
        watcher.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


class Metrics:
    """Prometheus metrics of all models, with vLLM's names under the prefix `gpt2np`."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        common: Any = {"labelnames": ["model_name"], "namespace": "gpt2np", "registry": registry}
        self.running = Gauge("num_requests_running", "Sequences in the batch", **common)
        self.waiting = Gauge("num_requests_waiting", "Sequences in the queue", **common)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **common)
        self.tokens = Counter("generation_tokens", "Generated tokens", **common)
        labels = {**common, "labelnames": ["model_name", "finished_reason"]}
        self.ended = Counter("request_success", "Ended sequences by finish reason", **labels)
        times: Any = {**common, "buckets": _SECONDS}
        first, whole = "Queue, prefill, first token", "Time of the whole sequence"
        self.first_token = Histogram("time_to_first_token_seconds", first, **times)
        self.whole = Histogram("e2e_request_latency_seconds", whole, **times)


@dataclass(eq=False)
class RunningRequest:
    """A request in progress."""

    engine: Engine
    n_sequences: int  # places in the queue
    deadline: float  # on the event loop's clock
    sequences: list[list[RunningSequence]] = field(default_factory=list)  # of each prompt
    has_ended: bool = False  # so passes that still run should stop

    @property
    def n_prompt_tokens(self) -> int:
        return sum(len(group[0].request.ids) for group in self.sequences)

    @property
    def all_sequences(self) -> list[RunningSequence]:
        return [sequence for group in self.sequences for sequence in group]

    def stop_at_end(self, _: str, array: Array) -> Array:
        """Return `array`: a hook, so that a pass stops once its request has ended."""
        if self.has_ended:
            raise GPT2NPError("the request has ended")
        return array


class Engine:
    """Runs the requests for one model, and refuses requests for which the queue has no place."""

    def __init__(
        self,
        lm: LanguageModel,
        metrics: Metrics,
        options: ServerOptions,
        template: ChatTemplate | None = None,
    ) -> None:
        self.lm, self.options, self.template = lm, options, template
        self._metrics = metrics
        self._max_sequences = options.max_running + options.max_queued
        self._running: set[RunningRequest] = set()  # changed in the event loop's thread only
        self._last_step = 0.0  # or when a sequence came to an idle engine
        on_step = WeakMethod(self._on_step)  # no cycle, so that a forgotten model's memory is free
        self._runner = AsyncEngine(
            options.max_running, lambda *step: (call := on_step()) and call(*step)
        )

    def _on_step(self, scheduler: Scheduler, updates: Sequence[Update]) -> None:
        """Record a decode step, on the runner's thread."""
        name, metrics = self.lm.name, self._metrics
        self._last_step = time.perf_counter()
        metrics.running.labels(name).set(len(scheduler.running))
        metrics.waiting.labels(name).set(len(scheduler.waiting))
        for update in updates:
            sequence, n = update.sequence, len(update.ids)
            seconds = self._last_step - sequence.started
            metrics.tokens.labels(name).inc(n)
            if n and n == len(sequence.ids):
                metrics.first_token.labels(name).observe(seconds)
            if update.finish_reason:
                outcome = "error" if sequence.error else update.finish_reason
                metrics.ended.labels(name, outcome).inc()
                metrics.whole.labels(name).observe(seconds)

    def check_health(self) -> None:
        """Raise UnavailableError if requests cannot run: no thread starts, or no step ends."""
        try:
            Thread(target=bool, name="gpt2np-health").start()
        except RuntimeError as error:
            raise UnavailableError(f"the server is out of threads: {error}") from error
        if self._runner.is_running and time.perf_counter() - self._last_step > self.options.timeout:
            raise UnavailableError(f"the engine of {self.lm.name} is stuck; restart the server")

    def start(self, n_sequences: int, param: str | None = None) -> RunningRequest:
        """Take places in the queue for a new request, which `param` asks for; `end` frees them."""
        if n_sequences > self._max_sequences:
            raise InvalidArgumentError(
                f"prompt and n ask for {n_sequences} sequences at a time, more than the server's "
                f"{self._max_sequences} places; send several requests",
                param=param,
            )
        n_taken = sum(running.n_sequences for running in self._running)
        if n_taken + n_sequences > self._max_sequences:
            raise UnavailableError(
                f"the server is busy: {n_taken} of {self._max_sequences} places are taken, and "
                f"this request needs {n_sequences}"
            )
        deadline = asyncio.get_running_loop().time() + self.options.timeout
        running = RunningRequest(self, n_sequences, deadline)
        self._running.add(running)
        return running

    def end(self, running: RunningRequest) -> None:
        """Free the places of a request; cancel what still runs."""
        self._running.discard(running)
        running.has_ended = True
        self._metrics.prompt_tokens.labels(self.lm.name).inc(running.n_prompt_tokens)
        for sequence in running.all_sequences:
            sequence.cancel()

    async def updates(
        self, running: RunningRequest, every_step: bool = True
    ) -> AsyncIterator[list[Update]]:
        """Run the sequences of a request until its deadline; see `AsyncEngine.run`."""
        if not self._runner.is_running:
            self._last_step = time.perf_counter()
        async for updates in self._runner.run(self.lm.model, running.all_sequences, every_step):
            if asyncio.get_running_loop().time() > running.deadline:
                raise RequestTimeoutError(self.options.timeout)
            for update in updates:
                if update.finish_reason and update.sequence.error:
                    raise update.sequence.error
            yield updates
