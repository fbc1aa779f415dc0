"""Prometheus metrics of the server, with vLLM's names under the prefix `gpt2np`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import RunningSequence
from gpt2np.language_model import LanguageModel
from gpt2np.runtime.kv_cache import cache_nbytes

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics:
    """The metrics of one server. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._running = self._gauge("num_requests_running", "Sequences in the batch")
        self._waiting = self._gauge("num_requests_waiting", "Sequences in the queue")
        self._cache = self._gauge("kv_cache_bytes", "Bytes of keys and values in use")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts")
        self._tokens = self._counter("generation_tokens", "Generated tokens")
        self._outcomes = Counter(
            "gpt2np_request_success",
            "Ended sequences by finish reason",
            ["finished_reason"],
            registry=self._registry,
        )
        self._first = self._histogram("time_to_first_token_seconds", "Queue, prefill, first token")
        self._queue = self._histogram("request_queue_time_seconds", "Time in the queue")
        self._next = self._histogram("inter_token_latency_seconds", "Time between two tokens")
        self._whole = self._histogram("e2e_request_latency_seconds", "Time of the whole sequence")
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt", _COUNTS)
        self._new = self._histogram("request_generation_tokens", "New tokens", _COUNTS)
        self._batch = self._histogram("batch_size", "Sequences in a decode step", _COUNTS)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"gpt2np_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"gpt2np_{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(f"gpt2np_{name}", text, registry=self._registry, buckets=buckets)

    def observe_step(self, lm: LanguageModel, scheduler: Scheduler) -> None:
        """Record the state of a scheduler after a decode step."""
        config, dtype, running = lm.model.config, lm.model.dtype, scheduler.running
        self._running.set(len(running))
        self._waiting.set(len(scheduler.waiting))
        self._cache.set(sum(cache_nbytes(config, s.cache.length, dtype) for s in running))
        self._batch.observe(len(running))

    def observe_queue(self, seconds: float) -> None:
        """Record how long a sequence waited for its first step."""
        self._queue.observe(seconds)

    def observe_tokens(self, n: int, *, is_first: bool, seconds: float) -> None:
        """Record the n tokens of a step, `seconds` after the step before, or after submission."""
        self._tokens.inc(n)
        if is_first:
            self._first.observe(seconds)
        else:
            for _ in range(n):
                self._next.observe(seconds / n)

    def observe_end(self, sequence: RunningSequence, seconds: float) -> None:
        """Record a sequence that has ended."""
        self._outcomes.labels("error" if sequence.error else sequence.finish_reason).inc()
        self._prompt_tokens.inc(len(sequence.prompt))
        self._prompt.observe(len(sequence.prompt))
        self._new.observe(len(sequence.ids))
        self._whole.observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)
