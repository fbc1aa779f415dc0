"""The speeds of one model, its peak memory, and their report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from gpt2np.benchmark.counts import prefill_flops, weight_bytes_per_token
from gpt2np.benchmark.machine import (
    describe_machine,
    matmul_flops,
    peak_memory,
    read_bandwidth,
    time_runs,
)
from gpt2np.model import GPT2, KVCache, last_token_indices

_DECODE_CONTEXT = 64  # tokens before the measured decode steps


def run_benchmark(
    model: GPT2,
    threads: int,
    seconds: float = 1.0,
    on_start: Callable[[str], object] = lambda name: None,
) -> dict[str, Any]:
    """Measure a model for about `seconds` seconds per figure.

    `on_start` is called with the name of each measurement. Returns the machine, its limits
    (bytes_per_second, flops_per_second), one entry of "speeds" per measurement (name, tokens,
    seconds, tokens_per_second and, for single texts, the share of the limit), and the bytes of
    the peak memory (None if unknown) and the weights.
    """
    config, works = model.config, []
    context = min(_DECODE_CONTEXT, config.n_positions - 1)
    for tokens in sorted({min(n, config.n_positions) for n in (64, 512)}):
        works.append((f"prompt of {tokens} tokens", tokens, _prompt(model, tokens)))
    for size in (1, 4, 16):
        name = "one text" if size == 1 else f"{size} texts at a time"
        works.append((name, size, _decode_step(model, size, context)))
    speeds: list[dict[str, Any]] = []
    for name, tokens, work in works:
        on_start(name)
        duration = median(time_runs(work, seconds))
        rate = tokens / duration
        speeds.append(
            {"name": name, "tokens": tokens, "seconds": duration, "tokens_per_second": rate}
        )
    peak = peak_memory()
    on_start("limits of the machine")
    bandwidth = read_bandwidth(model.weights.nbytes, threads, seconds)
    flops = matmul_flops(seconds)
    for speed in speeds:
        if speed["name"].startswith("prompt"):
            limit = speed["tokens"] * flops / prefill_flops(config, speed["tokens"])
        elif speed["tokens"] == 1:
            limit = bandwidth / weight_bytes_per_token(config, model.dtype.itemsize)
        else:
            continue
        speed["share_of_limit"] = speed["tokens_per_second"] / limit
    return {
        "machine": describe_machine(threads),
        "limits": {"bytes_per_second": bandwidth, "flops_per_second": flops},
        "speeds": speeds,
        "peak_memory": peak,
        "weights": model.weights.nbytes,
    }


def report(model: str, results: Mapping[str, Any]) -> str:
    """Return the results of `run_benchmark` as a text; `model` describes the model."""
    machine, limits = results["machine"], results["limits"]
    n_threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    lines = [
        f"model    {model}",
        f"machine  {machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}",
        f"         Python {machine['python']}, NumPy {machine['numpy']}, {machine['blas']}",
        f"kernels  {machine['kernels']}, {n_threads}",
        f"limits   reads {limits['bytes_per_second'] / 1e9:.1f} GB/s, multiplies "
        f"{limits['flops_per_second'] / 1e9:,.0f} GFLOP/s",
        "",
    ]
    for speed in results["speeds"]:
        share = speed.get("share_of_limit")
        suffix = f"   {share:.0%} of this machine's limit" if share else ""
        lines.append(f"{speed['name']:<22}{speed['tokens_per_second']:>10,.1f} tokens/s{suffix}")
    peak, weights = results["peak_memory"], results["weights"] / 1e6
    used = f"{peak / 1e6:,.0f} MB" if peak else "unknown"
    lines.append(f"{'peak memory':<22}{used:>13}         with {weights:,.0f} MB of weights")
    return "\n".join(lines)


def _prompt(model: GPT2, tokens: int) -> Callable[[], object]:
    ids = _ids(model, tokens)
    return lambda: model.forward([ids], [model.new_cache()], logits_indices=[tokens - 1])


def _decode_step(model: GPT2, size: int, context: int) -> Callable[[], None]:
    """Return a function that decodes a token for each of `size` texts of `context` tokens."""
    caches: Sequence[KVCache] = [model.new_cache() for _ in range(size)]
    if context:
        texts = [_ids(model, context)] * size
        model.forward(texts, caches, logits_indices=last_token_indices(texts))

    def step() -> None:
        model.forward([_ids(model, 1)] * size, caches).argmax(-1)
        for cache in caches:
            cache.truncate(context)

    return step


def _ids(model: GPT2, count: int) -> list[int]:
    return [i * 7919 % model.config.vocab_size for i in range(count)]
