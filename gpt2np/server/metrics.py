"""Prometheus metrics of the server, with vLLM's names under the prefix `gpt2np`."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server, by model. Methods may be called from any thread."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        common: Any = {"labelnames": ["model_name"], "namespace": "gpt2np", "registry": registry}
        self._running = Gauge("num_requests_running", "Sequences in the batch", **common)
        self._waiting = Gauge("num_requests_waiting", "Sequences in the queue", **common)
        self._prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **common)
        self._tokens = Counter("generation_tokens", "Generated tokens", **common)
        labels = ["model_name", "finished_reason"]
        text = "Ended sequences by finish reason"
        self._outcomes = Counter("request_success", text, **{**common, "labelnames": labels})
        times: Any = {**common, "buckets": _SECONDS}
        text = "Queue, prefill, first token"
        self._first = Histogram("time_to_first_token_seconds", text, **times)
        text = "Time of the whole sequence"
        self._whole = Histogram("e2e_request_latency_seconds", text, **times)

    def observe_step(self, model: str, n_running: int, n_waiting: int) -> None:
        """Record the numbers of sequences after a decode step."""
        self._running.labels(model).set(n_running)
        self._waiting.labels(model).set(n_waiting)

    def observe_prompts(self, model: str, n: int) -> None:
        """Record the tokens of a request's prompts."""
        self._prompt_tokens.labels(model).inc(n)

    def observe_tokens(self, model: str, n: int) -> None:
        """Record the n tokens of a step."""
        self._tokens.labels(model).inc(n)

    def observe_first_token(self, model: str, seconds: float) -> None:
        """Record when a sequence got its first token, after its submission."""
        self._first.labels(model).observe(seconds)

    def observe_end(self, model: str, outcome: str, seconds: float) -> None:
        """Record a sequence that has ended."""
        self._outcomes.labels(model, outcome).inc()
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)
