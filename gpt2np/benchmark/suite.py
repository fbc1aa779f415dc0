"""Benchmark suite of one model, with a report as a text table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np

from gpt2np.benchmark import timing
from gpt2np.benchmark.counts import prefill_flops, weight_bytes_per_token
from gpt2np.benchmark.machine import Limits, Machine, describe_machine, measure_limits
from gpt2np.benchmark.process import Memory, measure_memory, time_to_first_token
from gpt2np.benchmark.timing import Effort, Speed, TextSpeeds, Timing
from gpt2np.hub import VOCABULARY_FILES, ModelSource
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2, GPT2Config
from gpt2np.runtime.rank_tuner import RankChoice
from gpt2np.tokenizer import Tokenizer

OnProgress = Callable[[str], None]

Row = tuple[str, str, str, str, str]
"""Row of the table: measurement, case, median, range, comparison."""


@dataclass(frozen=True)
class Plan:
    """Cases and repetitions of a benchmark. A context is a number of cached tokens per sequence."""

    prompt_lengths: Sequence[int]  # of prefills
    context_lengths: Sequence[int]  # of decode steps
    batch_sizes: Sequence[int]
    batch_context: int
    draft_tokens: int  # verified in one pass
    draft_context: int
    limit_effort: Effort  # for each limit of the machine
    prefill_effort: Effort
    decode_effort: Effort
    turn_effort: Effort  # per round, for batches and draft tokens; see `timing.alternate`
    rounds: int
    text_tokens: int  # generated with and without drafts
    starts: int  # number of processes to start, for the time to the first token

    @property
    def n_measurements(self) -> int:
        """Number of times that `run_suite` reports progress."""
        return len(self.prompt_lengths) + len(self.context_lengths) + 7


@dataclass(frozen=True)
class Results:
    """Results of a benchmark; a model without a vocabulary has neither `start` nor `text`."""

    model: str
    config: GPT2Config
    parameters: int
    dtype: str
    machine: Machine
    limits: Limits
    prefill: list[Speed]
    decode: list[Speed]
    batches: list[Speed]
    draft: Speed
    start: Timing | None
    memory: Memory
    processes: int | Literal["auto"]
    rank_choices: list[RankChoice]  # empty unless `processes` is "auto"
    text: TextSpeeds | None

    @property
    def weight_bytes_per_token(self) -> int:
        """Number of bytes of weights that decoding one token reads."""
        return weight_bytes_per_token(self.config, np.dtype(self.dtype).itemsize)


def plan_for(n_positions: int, quick: bool = False) -> Plan:
    """Return a plan for a context of `n_positions` tokens; `quick` reduces the repetitions."""
    draft_tokens = min(8, n_positions)
    return Plan(
        prompt_lengths=_clip(n_positions, 64, 512, 1000),
        context_lengths=_clip(n_positions - 1, 64, n_positions // 2, 900),
        batch_sizes=(2, 4, 8, 16),
        batch_context=min(64, n_positions - 1),
        draft_tokens=draft_tokens,
        draft_context=min(200, n_positions - draft_tokens),
        limit_effort=Effort(3, 0.1) if quick else Effort(5, 0.4),
        prefill_effort=Effort(1, 0.3) if quick else Effort(3, 1.5),
        decode_effort=Effort(7, 0.2) if quick else Effort(20, 1),
        turn_effort=Effort(5, 0.1) if quick else Effort(7, 0.1),
        rounds=1 if quick else 3,
        text_tokens=max(0, min(100, n_positions - 32)),
        starts=1 if quick else 3,
    )


def _clip(limit: int, *lengths: int) -> tuple[int, ...]:
    return tuple(sorted({min(length, limit) for length in lengths}))


def run_suite(
    source: ModelSource,
    dtype: str,
    threads: int,
    processes: int | Literal["auto"],
    plan: Plan,
    on_progress: OnProgress,
) -> Results:
    """Run all measurements of a plan; `on_progress` receives the name of the next measurement."""
    on_progress("limits of the machine")
    machine = describe_machine(threads)  # first, before the benchmark adds to the load
    model = GPT2.from_folder(source.path, dtype)
    model.processes = processes
    nbytes = weight_bytes_per_token(model.config, model.dtype.itemsize)
    limits = measure_limits(nbytes, threads, dtype, plan.limit_effort)
    timing.warm_up(model)
    prefill = []
    for tokens in plan.prompt_lengths:
        on_progress(f"prefill of {tokens} tokens")
        prefill.append(timing.time_prefill(model, tokens, plan.prefill_effort))
    decode = _time_decodes(model, plan, on_progress)
    on_progress("batches")
    turns = plan.rounds, plan.turn_effort
    batches = timing.time_batches(model, plan.batch_sizes, plan.batch_context, *turns)
    on_progress("several tokens in one call")
    draft = timing.time_draft(model, plan.draft_tokens, plan.draft_context, *turns)
    has_vocabulary = not VOCABULARY_FILES.missing_in(source.path)
    on_progress("text with drafts, without")
    text = _time_text(model, source, plan) if has_vocabulary and plan.text_tokens else None
    on_progress("start")
    start = time_to_first_token(source.path, dtype, plan.starts) if has_vocabulary else None
    on_progress("memory")
    memory = measure_memory(source.path, dtype)
    on_progress("limits of the machine")  # measured twice, because the machine's load may change
    limits = limits.best_of(measure_limits(nbytes, threads, dtype, plan.limit_effort))
    parameters = model.weights.parameters
    settings = source.name, model.config, parameters, dtype, machine, limits
    speeds = prefill, decode, batches, draft
    return Results(*settings, *speeds, start, memory, model.processes, model.rank_choices, text)


def _time_text(model: GPT2, source: ModelSource, plan: Plan) -> TextSpeeds:
    lm = LanguageModel(model, Tokenizer.load(source.path), name=source.name)
    lm.folder = source.path
    return timing.time_text(lm, plan.text_tokens, plan.rounds)


def _time_decodes(model: GPT2, plan: Plan, on_progress: OnProgress) -> list[Speed]:
    """Time decode steps, longest context first: truncating the KV cache gives shorter contexts."""
    speeds: list[Speed] = []
    [cache] = timing.fill_caches(model, max(plan.context_lengths), 1)
    for context in sorted(plan.context_lengths, reverse=True):
        on_progress(f"decode at context {context}")
        cache.truncate(context)
        speeds.insert(0, timing.time_decode(model, cache, plan.decode_effort))
    return speeds


def decode_limit(results: Results) -> float:
    """Return the tokens per second of a decode step that only reads the weights."""
    return results.limits.bytes_per_second / results.weight_bytes_per_token


def prefill_limit(results: Results, tokens: int) -> float:
    """Return the tokens per second of a prefill that only computes its matrix products."""
    return results.limits.flops_per_second * tokens / prefill_flops(results.config, tokens)


def as_json(results: Results, date: datetime) -> dict[str, Any]:
    """Convert results to JSON.

    Units are seconds and bytes; speeds are tokens, bytes or operations per second.
    """
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
        "text": _text_json(results.text) if results.text else None,
        "processes": results.processes,
        "rank_choices": [asdict(choice) for choice in results.rank_choices],
        "start": _timing_json(results.start) if results.start else None,
        "memory": {**asdict(memory), "times_of_least": memory.relative_peak},
    }


def _text_json(text: TextSpeeds) -> dict[str, Any]:
    return {
        "tokens": text.tokens,
        "without_drafts": _timing_json(text.without_drafts),
        "with_drafts": _timing_json(text.with_drafts),
        "speedup": text.speedup,
    }


def _timing_json(times: Timing) -> dict[str, Any]:
    values = {name: getattr(times, name) for name in ("fastest", "slowest")}
    return {"seconds": times.median, **values, "runs": len(times.runs)}


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
    """Format results as a text table."""
    return "\n".join([*_header(results, date), "", *_align(_rows(results)), "", *_NOTES])


_NOTES = (
    "Values are medians. The limits assume that decode only reads the weights once per token, and",
    "that prefill only computes matrix products, at the speed of two large square matrices.",
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
        share = _share_of_limit(speed, prefill_limit(results, speed.tokens))
        yield _speed_row("prefill", f"{speed.tokens:,} tokens", speed, share)
    for speed in results.decode:
        share = _share_of_limit(speed, decode_limit(results))
        yield _speed_row("decode", f"at context {speed.context:,}", speed, share)
    for speed in results.batches:
        times = speed.sequences / (speed.relative_time or 1)
        case, ratio = f"{speed.sequences} sequences at {speed.context}", f"{times:4.2f} ×"
        yield _speed_row("batch", case, speed, f"{ratio} the speed of 1 sequence")
    yield _draft_row(results.draft)
    if results.text:
        yield from _text_rows(results.text)
    yield from _process_rows(results)
    yield from map(_rank_row, results.rank_choices)


def _text_rows(text: TextSpeeds) -> Iterator[Row]:
    for case, times, comparison in (
        ("without drafts", text.without_drafts, ""),
        ("with drafts", text.with_drafts, f"{text.speedup:4.2f} × the speed without drafts"),
    ):
        runs = [text.tokens / seconds for seconds in times.runs]
        median = f"{_format_rate(text.tokens / times.median)} tokens/s"
        yield "text", case, median, _range(runs), comparison


def _share_of_limit(speed: Speed, limit: float) -> str:
    share = speed.tokens_per_second / limit
    return f"{share:4.0%} of this machine's limit ({_format_rate(limit)})"


def _speed_row(measurement: str, case: str, speed: Speed, comparison: str) -> Row:
    runs = [speed.rate(seconds) for seconds in speed.timing.runs]
    median = f"{_format_rate(speed.tokens_per_second)} tokens/s"
    return measurement, case, median, _range(runs), comparison


def _range(runs: Sequence[float], digits: int | None = None) -> str:
    """Format the lowest and the highest value as "low – high". Returns "" for a single run."""
    ends = (min(runs), max(runs))
    low, high = (_format_rate(end) if digits is None else f"{end:.{digits}f}" for end in ends)
    return f"{low} – {high}" if len(runs) > 1 else ""


def _draft_row(speed: Speed) -> Row:
    runs, times = speed.timing, speed.relative_time or 1
    return (
        "one call",
        f"{speed.tokens} tokens at {speed.context}",
        f"{runs.median * 1e3:.1f} ms      ",
        _range([1e3 * seconds for seconds in runs.runs], 1),
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


def _rank_row(choice: RankChoice) -> Row:
    first, last = choice.min_rows, choice.max_rows
    rows = f"{first}" if last == first else f"{first} – {last}" if last else f"{first} or more"
    times = ", ".join(f"{n}: {seconds * 1e3:.1f} ms" for n, seconds in choice.seconds.items())
    case = f"{rows} {'token' if last == 1 else 'tokens'} a pass"
    return "processes", case, f"{choice.ranks}               ", "", f"processes and times: {times}"


def _format_rate(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _align(rows: Iterable[Row]) -> Iterator[str]:
    """Align the columns of a table: text to the left, numbers to the right."""
    rows = [("", "", "median         ", "lowest – highest", ""), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for measurement, case, median, spread, comparison in rows:
        line = (
            f"{measurement:<{widths[0]}}  {case:<{widths[1]}}  {median:>{widths[2]}}  "
            f"{spread:>{widths[3]}}  {comparison}"
        )
        yield line.rstrip()
