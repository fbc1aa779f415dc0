"""Benchmark suite of one model, with a report as a text table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from gpt2np.benchmark import timing
from gpt2np.benchmark.counts import prefill_flops, weight_bytes_per_token
from gpt2np.benchmark.machine import SpeedLimits, describe_machine, measure_limits
from gpt2np.benchmark.process import Processes, measure_memory, time_to_first_token
from gpt2np.benchmark.timing import Effort, Speed
from gpt2np.hub import ModelSource
from gpt2np.hub.model_files import VOCABULARY_FILES
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2, GPT2Config
from gpt2np.tokenizer import Tokenizer

Row = tuple[str, str, str, str, str]
"""Row of the table: measurement, case, median, range, comparison."""

_BATCH_SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Plan:
    """The cases that a benchmark measures, such as prompt lengths, and the repetitions."""

    n_positions: int
    limit_effort: Effort  # for each limit of the machine
    prefill_effort: Effort
    decode_effort: Effort
    turn_effort: Effort  # per round, for batches and draft tokens; see `timing.alternate`
    rounds: int  # also the number of processes to start, for the time to the first token

    @property
    def prompt_lengths(self) -> list[int]:
        """Lengths of the prompts whose prefill is measured, in tokens."""
        return sorted({min(length, self.n_positions) for length in (64, 512, 1000)})

    @property
    def context_lengths(self) -> list[int]:
        """Numbers of cached tokens in the decode steps that are measured."""
        lengths = (64, self.n_positions // 2, 900)
        return sorted({min(length, self.n_positions - 1) for length in lengths})

    @property
    def draft_tokens(self) -> int:
        """Number of draft tokens to verify in one pass."""
        return min(8, self.n_positions)

    @property
    def n_measurements(self) -> int:
        """Number of measurements; `run_suite` calls `on_progress` before each."""
        return len(self.prompt_lengths) + len(self.context_lengths) + 7


def plan_for(n_positions: int, quick: bool = False) -> Plan:
    """Plan the benchmark of a model with `n_positions` positions; `quick`: fewer repetitions."""
    if quick:
        efforts = Effort(3, 0.1), Effort(1, 0.3), Effort(7, 0.2), Effort(5, 0.1)
        return Plan(n_positions, *efforts, rounds=1)
    efforts = Effort(5, 0.4), Effort(3, 1.5), Effort(20, 1), Effort(7, 0.1)
    return Plan(n_positions, *efforts, rounds=3)


def run_suite(
    source: ModelSource,
    dtype: str,
    weights: Literal["int8"] | None,
    threads: int,
    processes: Processes,
    plan: Plan,
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run all measurements of a plan, and return the results as a JSON object.

    Units are seconds and bytes; speeds are tokens, bytes or operations per second. For a model
    without a vocabulary, "start" and "text" are None. `on_progress` receives the name of the next
    measurement.
    """
    on_progress("limits of the machine")
    machine = describe_machine(threads)  # first, before the benchmark adds to the load
    model = GPT2.from_folder(source.path, dtype, weights)
    model.processes = processes
    nbytes = weight_bytes_per_token(model.config, 1 if weights else model.dtype.itemsize)
    limits = measure_limits(nbytes, threads, dtype, plan.limit_effort)
    passes = _time_passes(model, plan, on_progress)
    generation = _measure_generation(source, model, plan, on_progress)
    on_progress("limits of the machine")  # measured twice, because the machine's load may change
    limits = limits.best_of(measure_limits(nbytes, threads, dtype, plan.limit_effort))
    return {
        "model": source.name,
        "parameters": model.weights.parameters,
        "config": asdict(model.config),
        "dtype": dtype,
        "weights": weights or dtype,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine,
        "limits": asdict(limits),
        "weight_bytes_per_token": nbytes,
        **_compare(*passes, limits, model.config, nbytes),
        **generation,
        "processes": model.processes,
        "rank_choices": [asdict(choice) for choice in model.rank_choices],
    }


def _time_passes(
    model: GPT2, plan: Plan, on_progress: Callable[[str], None]
) -> tuple[list[Speed], list[Speed], list[Speed], Speed]:
    """Time passes of prefill, of decoding, of batches, and of draft tokens."""
    timing.warm_up(model)
    prefill: list[Speed] = []
    for tokens in plan.prompt_lengths:
        on_progress(f"prefill of {tokens} tokens")
        prefill.append(timing.time_prefill(model, tokens, plan.prefill_effort))
    decode: list[Speed] = []
    [cache] = timing.fill_caches(model, max(plan.context_lengths), 1)
    for context in reversed(plan.context_lengths):  # truncating the cache gives shorter contexts
        on_progress(f"decode at context {context}")
        cache.truncate(context)
        decode.insert(0, timing.time_decode(model, cache, plan.decode_effort))
    on_progress("batches")
    turns = plan.rounds, plan.turn_effort
    batches = timing.time_batches(model, _BATCH_SIZES, min(64, plan.n_positions - 1), *turns)
    on_progress("several tokens in one call")
    context = min(200, plan.n_positions - plan.draft_tokens)
    return prefill, decode, batches, timing.time_draft(model, plan.draft_tokens, context, *turns)


def _compare(
    prefill: Sequence[Speed],
    decode: Sequence[Speed],
    batches: Sequence[Speed],
    draft: Speed,
    limits: SpeedLimits,
    config: GPT2Config,
    nbytes: int,
) -> dict[str, Any]:
    """Convert speeds to JSON, with the limits of prefill, and of decoding, which reads `nbytes`."""
    prefill_limits = (  # of passes that only compute their matrix products
        limits.flops_per_second * s.tokens / prefill_flops(config, s.tokens) for s in prefill
    )
    decode_limit = limits.bytes_per_second / nbytes  # of steps that only read the weights
    return {
        "prefill": [*map(speed_as_json, prefill, prefill_limits)],
        "decode": [speed_as_json(speed, decode_limit) for speed in decode],
        "batch": [*map(speed_as_json, batches)],
        "several_tokens": speed_as_json(draft),
    }


def _measure_generation(
    source: ModelSource, model: GPT2, plan: Plan, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Time a text and the first token of a new process, and measure the memory of another."""
    arguments = source.path, str(model.dtype), model.weight_dtype, model.processes
    text = start = None
    has_vocabulary = not VOCABULARY_FILES.missing_in(source.path)
    on_progress("text with drafts, without")
    if has_vocabulary and plan.n_positions > 32:
        text = _time_text(model, source, plan)
    on_progress("start")
    if has_vocabulary:
        start = time_to_first_token(*arguments, plan.n_positions, plan.rounds).as_json()
    on_progress("memory")
    return {"text": text, "start": start, "memory": measure_memory(*arguments)}


def _time_text(model: GPT2, source: ModelSource, plan: Plan) -> dict[str, Any]:
    lm = LanguageModel(model, Tokenizer.load(source.path), name=source.name)
    lm.folder = source.path
    plain, drafted = timing.time_text(lm, min(100, plan.n_positions - 32), plan.rounds)
    return {
        "tokens": plain.tokens,
        "without_drafts": plain.timing.as_json(),
        "with_drafts": drafted.timing.as_json(),
        "speedup": 1 / (drafted.relative_time or 1),
    }


def speed_as_json(speed: Speed, limit: float | None = None) -> dict[str, Any]:
    """Convert a speed to a JSON object; `limit` is the machine's limit in tokens per second."""
    content = {
        "tokens": speed.tokens,
        "sequences": speed.sequences,
        "context": speed.context,
        "tokens_per_second": speed.tokens_per_second,
        **speed.timing.as_json(),
    }
    if limit is not None:
        content |= {"limit": limit, "of_limit": speed.tokens_per_second / limit}
    if speed.relative_time is not None:
        content |= {
            "seconds_times_of_one": speed.relative_time,
            "speed_times_of_one": speed.tokens * speed.sequences / speed.relative_time,
        }
    return content


def suite_text(results: Mapping[str, Any]) -> str:
    """Format the results of `run_suite` as a text table."""
    return "\n".join([*_header(results), "", *_align(_rows(results)), "", _NOTES])


_NOTES = """\
Values are medians. The limits assume that decode only reads the weights once per token, and
that prefill only computes matrix products, at the speed of two large square matrices."""


def _header(results: Mapping[str, Any]) -> Iterator[str]:
    machine, limits = results["machine"], results["limits"]
    weights = "int8 weights, " if results["weights"] == "int8" else ""
    yield (
        f"{results['model']}: {results['parameters'] / 1e6:,.1f} million parameters, "
        f"{results['dtype']}, {weights}"
        f"context {results['config']['n_positions']:,}"
    )
    yield ""
    load = "" if machine["load"] is None else f", load before {machine['load']:.1f}"
    cpus, threads = (
        f"{machine[name]} {noun}{'' if machine[name] == 1 else 's'}"
        for name, noun in (("cpus", "CPU"), ("threads", "thread"))
    )
    yield f"machine   {machine['cpu']}, {cpus}, {machine['system']}{load}"
    yield "software  gpt2np {gpt2np}, Python {python}, NumPy {numpy}".format(**machine)
    yield f"BLAS      {machine['blas']}, {threads}"
    yield f"kernels   {machine['kernels']}"
    yield (
        f"limits    reads {limits['bytes_per_second'] / 1e9:.1f} GB/s "
        f"({limits['bytes_read'] / 1e6:,.1f} MB, repeatedly), "
        f"multiplies {limits['flops_per_second'] / 1e9:,.0f} GFLOP/s"
    )
    yield f"date      {datetime.fromisoformat(results['date']):%Y-%m-%d %H:%M}"


def _rows(results: Mapping[str, Any]) -> Iterator[Row]:
    for name in ("prefill", "decode"):
        for speed in results[name]:
            tokens, context = f"{speed['tokens']:,} tokens", f"at context {speed['context']:,}"
            case = context if name == "decode" else tokens
            limit = _format_rate(speed["limit"])
            share = f"{speed['of_limit']:4.0%} of this machine's limit ({limit})"
            yield _rate_row(name, case, speed, speed["tokens"], share)
    for speed in results["batch"]:
        case = f"{speed['sequences']} sequences at {speed['context']}"
        comparison = f"{speed['speed_times_of_one']:4.2f} × the speed of 1 sequence"
        yield _rate_row("batch", case, speed, speed["sequences"], comparison)
    draft = results["several_tokens"]
    yield (
        "one call",
        f"{draft['tokens']} tokens at {draft['context']}",
        f"{draft['seconds'] * 1e3:.1f} ms      ",
        _range(draft, lambda seconds: f"{1e3 * seconds:.1f}"),
        f"{draft['seconds_times_of_one']:.2f} × the time of 1 token",
    )
    if text := results["text"]:
        faster = f"{text['speedup']:4.2f} × the speed without drafts"
        for name, comparison in (("without_drafts", ""), ("with_drafts", faster)):
            case = name.replace("_", " ")
            yield _rate_row("text", case, text[name], text["tokens"], comparison)
    if start := results["start"]:
        spread = _range(start, "{:.2f}".format)
        yield "start", "to the first token", f"{start['seconds']:.2f} s       ", spread, ""
    else:
        yield "start", "to the first token", "–         ", "", "the model has no vocabulary"
    memory = results["memory"]
    peak = f"{memory['peak'] / 1e6:,.0f} MB      " if memory["peak"] else "unknown         "
    times = f"{memory['times_of_least']:.2f} × " if memory["peak"] else ""
    weights, kv_cache = (f"{memory[name] / 1e6:,.0f}" for name in ("weights", "kv_cache"))
    least = f"{times}{weights} MB of weights + {kv_cache} of KV cache"
    yield "memory", "context full, peak", peak, "", least
    yield from map(_rank_row, results["rank_choices"])


def _rank_row(choice: Mapping[str, Any]) -> Row:
    """Return a table row that shows the number of processes for passes of some size."""
    first, last = choice["min_rows"], choice["max_rows"]
    rows = f"{first}" if last == first else f"{first} – {last}" if last else f"{first} or more"
    times = ", ".join(f"{n}: {seconds * 1e3:.1f} ms" for n, seconds in choice["seconds"].items())
    case = f"{rows} {'token' if last == 1 else 'tokens'} a pass"
    return "processes", case, f"{choice['ranks']}{'':15}", "", f"processes and times: {times}"


def _rate_row(
    measurement: str, case: str, timing: Mapping[str, Any], tokens: int, comparison: str
) -> Row:
    """Return a table row that shows a timing of `tokens` tokens as tokens per second."""

    def rate(seconds: float) -> str:
        return _format_rate(tokens / seconds)

    median = f"{rate(timing['seconds'])} tokens/s"
    return measurement, case, median, _range(timing, rate, reverse=True), comparison


def _range(
    timing: Mapping[str, Any], formatted: Callable[[float], str], reverse: bool = False
) -> str:
    """Format the fastest and slowest run as "a – b", or "" for one run; `reverse`: "b – a"."""
    ends = [formatted(timing[name]) for name in ("fastest", "slowest")]
    return " – ".join(reversed(ends) if reverse else ends) if timing["runs"] > 1 else ""


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
