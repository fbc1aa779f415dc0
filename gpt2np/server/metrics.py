"""Prometheus metrics of the server, with vLLM's names under the prefix `gpt2np`."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpt2np.generation.scheduler import Scheduler
from gpt2np.language_model import LanguageModel
from gpt2np.runtime.kv_cache import cache_nbytes

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics:
    """The metrics of one server, by model. Methods may be called from any thread."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        common: Any = {"labelnames": ["model_name"], "namespace": "gpt2np", "registry": registry}
        self._running = Gauge("num_requests_running", "Sequences in the batch", **common)
        self._waiting = Gauge("num_requests_waiting", "Sequences in the queue", **common)
        self._cache = Gauge("kv_cache_bytes", "Bytes of keys and values in use", **common)
        self._prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **common)
        self._tokens = Counter("generation_tokens", "Generated tokens", **common)
        labels = ["model_name", "finished_reason"]
        text = "Ended sequences by finish reason"
        self._outcomes = Counter("request_success", text, **{**common, "labelnames": labels})
        times: Any = {**common, "buckets": _SECONDS}
        text = "Queue, prefill, first token"
        self._first = Histogram("time_to_first_token_seconds", text, **times)
        self._queue = Histogram("request_queue_time_seconds", "Time in the queue", **times)
        self._next = Histogram("inter_token_latency_seconds", "Time between two tokens", **times)
        self._whole = Histogram(
            "e2e_request_latency_seconds", "Time of the whole sequence", **times
        )
        sizes: Any = {**common, "buckets": _COUNTS}
        self._prompt = Histogram("request_prompt_tokens", "Tokens of a prompt", **sizes)
        self._new = Histogram("request_generation_tokens", "New tokens", **sizes)
        self._batch = Histogram("batch_size", "Sequences in a decode step", **sizes)

    def observe_step(self, lm: LanguageModel, scheduler: Scheduler) -> None:
        """Record the state of a scheduler after a decode step."""
        config, dtype, running = lm.model.config, lm.model.dtype, scheduler.running
        self._running.labels(lm.name).set(len(running))
        self._waiting.labels(lm.name).set(len(scheduler.waiting))
        n_bytes = sum(cache_nbytes(config, s.cache.length, dtype) for s in running)
        self._cache.labels(lm.name).set(n_bytes)
        self._batch.labels(lm.name).observe(len(running))

    def observe_queue(self, model: str, seconds: float) -> None:
        """Record how long a sequence waited for its first step."""
        self._queue.labels(model).observe(seconds)

    def observe_prompts(self, model: str, n: int) -> None:
        """Record the tokens of a request's prompts."""
        self._prompt_tokens.labels(model).inc(n)

    def observe_tokens(self, model: str, n: int, is_first: bool, seconds: float) -> None:
        """Record the n tokens of a step, `seconds` after the step before, or after submission."""
        self._tokens.labels(model).inc(n)
        if is_first:
            self._first.labels(model).observe(seconds)
        else:
            for _ in range(n):
                self._next.labels(model).observe(seconds / n)

    def observe_end(
        self, model: str, n_prompt: int, n_new: int, outcome: str | None, seconds: float
    ) -> None:
        """Record a sequence that has ended."""
        self._outcomes.labels(model, outcome).inc()
        self._prompt.labels(model).observe(n_prompt)
        self._new.labels(model).observe(n_new)
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)
