"""Benchmark results as a text table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from gpt2np.benchmark.counts import prefill_flops
from gpt2np.benchmark.suite import Results
from gpt2np.benchmark.timing import Speed, Timing

Row = tuple[str, str, str, str, str]
"""Measurement, case, median, range, comparison."""


def decode_limit(results: Results) -> float:
    """Return the tokens per second if decoding only had to read the weights."""
    return results.limits.bytes_per_second / results.weight_bytes_per_token


def prefill_limit(results: Results, tokens: int) -> float:
    """Return the tokens per second if prefill only had to compute its matmuls at full speed."""
    return results.limits.flops_per_second * tokens / prefill_flops(results.config, tokens)


def as_json(results: Results, date: datetime) -> dict[str, Any]:
    """Convert results to JSON: seconds, bytes, and tokens, bytes and operations per second."""
    memory = results.memory
    return {
        "model": results.model,
        "parameters": results.parameters,
        "config": asdict(results.config),
        "dtype": results.dtype,
        "date": date.isoformat(timespec="seconds"),
        "machine": asdict(results.machine),
        "limits": asdict(results.limits),
        "weight_bytes_per_token": results.weight_bytes_per_token,
        "prefill": [
            _speed_json(speed, prefill_limit(results, speed.tokens)) for speed in results.prefill
        ],
        "decode": [_speed_json(speed, decode_limit(results)) for speed in results.decode],
        "batch": [_speed_json(speed) for speed in results.batches],
        "several_tokens": _speed_json(results.draft),
        "start": _timing_json(results.start) if results.start else None,
        "memory": {**asdict(memory), "times_of_least": memory.relative_peak},
    }


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "seconds": timing.median,
        "fastest": timing.fastest,
        "slowest": timing.slowest,
        "runs": len(timing.runs),
    }


def _speed_json(speed: Speed, limit: float | None = None) -> dict[str, Any]:
    content = {
        "tokens": speed.tokens,
        "sequences": speed.sequences,
        "context": speed.context,
        "tokens_per_second": speed.tokens_per_second,
        **_timing_json(speed.timing),
    }
    if limit is not None:
        content |= {"limit": limit, "of_limit": speed.tokens_per_second / limit}
    if speed.relative_time is not None:
        content |= {
            "seconds_times_of_one": speed.relative_time,
            "speed_times_of_one": speed.tokens * speed.sequences / speed.relative_time,
        }
    return content


def as_text(results: Results, date: datetime) -> str:
    """Format results as a table."""
    return "\n".join([*_header(results, date), "", *_align(_rows(results)), "", *_NOTES])


_NOTES = (
    "Values are medians. This machine's limit for decode: read the weights once per token, nothing",
    "else. For prefill: compute the matrix products, as fast as for two large matrices.",
)


def _header(results: Results, date: datetime) -> Iterator[str]:
    machine, limits = results.machine, results.limits
    yield (
        f"{results.model}: {results.parameters / 1e6:,.1f} million parameters, {results.dtype}, "
        f"context {results.config.n_positions:,}"
    )
    yield ""
    load = "" if machine.load is None else f", load before {machine.load:.1f}"
    yield f"machine   {machine.cpu}, {_pluralize(machine.cpus, 'CPU')}, {machine.system}{load}"
    yield f"software  gpt2np {machine.gpt2np}, Python {machine.python}, NumPy {machine.numpy}"
    yield f"BLAS      {machine.blas}, {_pluralize(machine.threads, 'thread')}"
    yield (
        f"limits    reads {limits.bytes_per_second / 1e9:.1f} GB/s "
        f"({limits.bytes_read / 1e6:,.1f} MB, repeatedly), "
        f"multiplies {limits.flops_per_second / 1e9:,.0f} GFLOP/s"
    )
    yield f"date      {date:%Y-%m-%d %H:%M}"


def _pluralize(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _rows(results: Results) -> Iterator[Row]:
    for speed in results.prefill:
        limit = prefill_limit(results, speed.tokens)
        yield _speed_row(
            "prefill", f"{speed.tokens:,} tokens", speed, _share_of_limit(speed, limit)
        )
    for speed in results.decode:
        limit = decode_limit(results)
        yield _speed_row(
            "decode", f"at context {speed.context:,}", speed, _share_of_limit(speed, limit)
        )
    for speed in results.batches:
        times = speed.sequences / (speed.relative_time or 1)
        yield _speed_row(
            "batch",
            f"{speed.sequences} sequences at {speed.context}",
            speed,
            f"{times:4.2f} × the speed of 1 sequence",
        )
    yield _draft_row(results.draft)
    yield from _process_rows(results)


def _share_of_limit(speed: Speed, limit: float) -> str:
    share = speed.tokens_per_second / limit
    return f"{share:4.0%} of this machine's limit ({_format_rate(limit)})"


def _speed_row(measurement: str, case: str, speed: Speed, comparison: str) -> Row:
    runs = [speed.rate(seconds) for seconds in speed.timing.runs]
    return (
        measurement,
        case,
        f"{_format_rate(speed.tokens_per_second)} tokens/s",
        _range(runs),
        comparison,
    )


def _range(runs: Sequence[float], digits: int | None = None) -> str:
    """Lowest – highest; empty for a single run."""
    ends = (min(runs), max(runs))
    low, high = (_format_rate(end) if digits is None else f"{end:.{digits}f}" for end in ends)
    return f"{low} – {high}" if len(runs) > 1 else ""


def _draft_row(speed: Speed) -> Row:
    timing, times = speed.timing, speed.relative_time or 1
    return (
        "one call",
        f"{speed.tokens} tokens at {speed.context}",
        f"{timing.median * 1e3:.1f} ms      ",
        _range([1e3 * seconds for seconds in timing.runs], 1),
        f"{times:.2f} × the time of 1 token",
    )


def _process_rows(results: Results) -> Iterator[Row]:
    start, memory = results.start, results.memory
    if start:
        median = f"{start.median:.2f} s       "
        yield "start", "to the first token", median, _range(start.runs, 2), ""
    else:
        yield "start", "to the first token", "–         ", "", "the model has no vocabulary"
    peak = f"{memory.peak / 1e6:,.0f} MB      " if memory.peak else "unknown         "
    times = f"{memory.relative_peak:.2f} × " if memory.relative_peak else ""
    least = f"{memory.weights / 1e6:,.0f} MB of weights + {memory.kv_cache / 1e6:,.0f} of KV cache"
    yield "memory", "context full, peak", peak, "", times + least


def _format_rate(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _align(rows: Iterable[Row]) -> Iterator[str]:
    """Align the columns: text to the left, numbers to the right."""
    rows = [("", "", "median         ", "lowest – highest", ""), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for measurement, case, median, spread, comparison in rows:
        line = (
            f"{measurement:<{widths[0]}}  {case:<{widths[1]}}  {median:>{widths[2]}}  "
            f"{spread:>{widths[3]}}  {comparison}"
        )
        yield line.rstrip()
