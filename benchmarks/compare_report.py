"""Workloads and results of compare.py, and the report in Markdown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from compare_engines import BATCH_CONTEXT, DRAFT_CONTEXT, DRAFT_ROWS
from compare_models import SHAPES

CONTEXT = 1024
DRAFT_RATIO = f"{DRAFT_ROWS} rows ÷ 1 row"


@dataclass(frozen=True)
class Workload:
    """A kind of measurement: one row of the report.

    Attributes:
        name: the row's title.
        group: name of the task in compare_engines.py.
        argument: the task's argument.
        unit: the unit; ↓ marks units of which less is better.
        digits: decimal places in the report.
    """

    name: str
    group: str
    argument: int
    unit: str
    digits: int = 1


BATCHES = (1, 2, 4, 8, 16, 32)
WORKLOADS = [
    Workload("prefill 512", "prefill", 512, "tokens/s", 0),
    Workload("prefill 1000", "prefill", 1000, "tokens/s", 0),
    Workload("decode at 64", "decode", 64, "tokens/s"),
    Workload("decode at 900", "decode", 900, "tokens/s"),
    *(Workload(f"batch {n}", "batch", n, "tokens/s") for n in BATCHES),
    Workload("1 row", "rows", 1, "ms ↓"),
    Workload(f"{DRAFT_ROWS} rows", "rows", DRAFT_ROWS, "ms ↓"),
    Workload("start", "start", 0, "s ↓", 2),
    Workload("peak memory", "memory", CONTEXT, "MiB ↓", 0),
]
DERIVED = [  # name, numerator, denominator
    *((f"batch {n} ÷ batch 1", f"batch {n}", "batch 1") for n in BATCHES[1:]),
    (DRAFT_RATIO, f"{DRAFT_ROWS} rows", "1 row"),
]


@dataclass
class Results:
    """Results of a run.

    Attributes:
        values: engine → workload → one value per round.
        versions: engine → version.
        skipped: engine → why it was not measured, or not to the end.
        unsupported: engine → workload → why there is no value.
        difference: engine → largest difference of a logit from that of transformers.
        idle_share: engine → most CPU time that it took while waiting, as a share of one core.
        others_share: CPU time of other programs per measurement, as a share of one core.
        bandwidth: GB/s of the machine per round.
        peak: GFLOP/s of the machine per round.
        facts: machine, versions and options.
    """

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, dict[str, str]] = field(default_factory=dict)
    difference: dict[str, float | None] = field(default_factory=dict)
    idle_share: dict[str, float] = field(default_factory=dict)
    others_share: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, engine: str, work: str, value: float) -> None:
        """Add the value of one round."""
        self.values.setdefault(engine, {}).setdefault(work, []).append(value)


def add_derived(results: Results) -> None:
    """Add ratios between workloads of the same engine, for each round."""
    for values in results.values.values():
        for name, above, below in DERIVED:
            if above in values and below in values:
                pairs = zip(values[above], values[below], strict=False)
                values[name] = [a / b for a, b in pairs]


def cell(values: list[float] | None, digits: int) -> str:
    """Format the median of values, with their range."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def measured_workloads(results: Results) -> list[Workload]:
    """Return the workloads, derived ratios included, for which any engine has a value."""
    workloads = [*WORKLOADS, Workload("peak while decoding", "memory", CONTEXT, "MiB ↓", 0)]
    workloads += [Workload(name, "", 0, "×", 2) for name, _, _ in DERIVED]
    measured = {name for values in results.values.values() for name in values}
    return [work for work in workloads if work.name in measured]


def speed_table(results: Results) -> list[str]:
    """Tabulate the values of all engines."""
    engines = list(results.values)
    rows = [
        [f"{work.name}, {work.unit}"]
        + [cell(results.values[engine].get(work.name), work.digits) for engine in engines]
        for work in measured_workloads(results)
    ]
    return table([f"{results.facts['cpu']}: median (min–max)", *engines], rows)


def ratio_table(results: Results) -> list[str]:
    """Tabulate gpt2np ÷ each other engine: median of the ratios within a round."""
    ours, peers = results.values["gpt2np"], [name for name in results.values if name != "gpt2np"]
    rows = []
    for work in measured_workloads(results):
        if work.unit != "×" and work.name in ours:
            row = [f"{work.name}{' ↓' if '↓' in work.unit else ''}"]
            for peer in peers:
                theirs = results.values[peer].get(work.name, [])
                pairs = zip(ours[work.name], theirs, strict=False)
                row.append(cell([a / b for a, b in pairs], 2))
            rows.append(row)
    return table([f"{results.facts['cpu']}: gpt2np ÷", *peers], rows)


def limits(shape: str, bandwidth: float, peak: float) -> dict[str, float]:
    """Return upper limits in tokens/s, set by the memory bandwidth or the peak of the processor.

    Decoding reads all float32 weights once per token.
    """
    layers, _, channels = SHAPES[shape]
    matrices = 12 * layers * channels**2
    unembedding = 50257 * channels
    upper = {}
    for context in (64, 900):
        read = 4 * (matrices + unembedding + 2 * layers * channels * context)
        upper[f"decode at {context}"] = bandwidth * 1e9 / read
    for tokens in (512, 1000):
        attention = layers * channels * tokens  # a token attends to half of the text on average
        operations = 2 * tokens * (matrices + attention) + 2 * unembedding
        upper[f"prefill {tokens}"] = peak * 1e9 * tokens / operations
    return upper


def limit_table(results: Results, shape: str) -> list[str]:
    """Tabulate shares of the limits, computed from the highest bandwidth and peak of the run."""
    upper = limits(shape, max(results.bandwidth), max(results.peak))
    engines = list(results.values)
    rows = []
    for name, limit in upper.items():
        medians = [results.values[engine].get(name) for engine in engines]
        if any(medians):
            shares = [f"{statistics.median(m) / limit:.0%}" if m else "–" for m in medians]
            rows.append([f"{name} (limit {limit:.0f} tokens/s)", *shares])
    head = f"{results.facts['cpu']}: share of the limit"
    return table([head, *engines], rows) if rows else []


def memory_line(results: Results, shape: str) -> list[str]:
    """Compare peak memory with the size of the weights and the KV cache."""
    layers, _, channels = SHAPES[shape]
    parameters = layers * (12 * channels**2 + 13 * channels) + (50257 + 1024 + 2) * channels
    needed = 4 * (parameters + 2 * layers * channels * CONTEXT) / (1 << 20)
    shares = [
        f"{engine} {statistics.median(values['peak memory']) / needed:.2f}"
        for engine, values in results.values.items()
        if "peak memory" in values
    ]
    if not shares:
        return []
    return [
        f"Weights and KV cache of {CONTEXT} tokens are {needed:.0f} MiB in float32; the peak "
        f"memory is that times: {', '.join(shares)}.",
        "",
    ]


MEANING = f"""\
- prefill n: from the ids of a prompt of n tokens to the next id. decode at n: new tokens of one
  sequence; n is the context in the middle of the measured steps. batch n: new tokens of n
  sequences together, from {BATCH_CONTEXT} tokens of context on. n rows: n new tokens of one
  sequence in one call at {DRAFT_CONTEXT} tokens of context, with all their logits. Greedy choice
  is included.
- start: time of a new process from its start to the first token after a prompt of 5 tokens,
  tokenizer included. gpt2np runs its command `gpt2np generate` to its exit; the other engines run
  a program that exits without cleaning up.
- peak memory: most resident memory (VmHWM, mapped files included) of a new process that loads the
  model, reads a prompt and decodes up to a context of {CONTEXT}, plus the memory of its child
  processes that is not shared. while decoding: from the first new token on.
- ↓ less is better. Ratios are formed within a round; median (min–max) over the rounds.
- gpt2np: `model.processes` is the number of threads, as on the command line.
- llama.cpp runs with its defaults: weights in float32, keys and values in float16, flash attention
  where possible. llama.cpp-float32 has keys and values in float32 and no flash attention, which is
  slower in float32. All other engines compute in float32 throughout. plain-numpy recomputes
  everything for each token, as picoGPT does, but in float32 instead of float64. ONNX Runtime runs a
  graph of standard ONNX operators (Attention of opset 23). transformers runs sdpa."""


def listed(title: str, names: list[str]) -> str:
    """Return a sentence that lists names, or "" if there are none."""
    return f" {title}: {', '.join(names)}." if names else ""


def report(results: Results) -> str:
    """Return the whole report in Markdown."""
    f, shape = results.facts, results.facts["shape"]
    old = f" (old: {f['old commit']})" if f["old commit"] else ""
    versions = ", ".join(
        f"{name} {version}" for name, version in results.versions.items() if version
    )
    lines = [
        f"# GPT-2 {shape}, float32, {f['threads']} threads",
        "",
        f"{f['date']}, {f['cpu']}, {f['cores']} cores, {f['system']}, Python {f['python']}, NumPy "
        f"{f['numpy']}, kernels {f['kernels']}; gpt2np at {f['commit']}{old}; {versions}. "
        f"Rounds: {f['rounds']}; engines "
        f"take turns.{listed('Variables', f['environment'])}"
        f"{listed('Variables of the shell left out', f['left out'])}",
        "",
        f"The machine: NumPy reads {cell(results.bandwidth, 1)} GB/s and multiplies at "
        f"{cell(results.peak, 0)} GFLOP/s.",
        "",
        *speed_table(results),
    ]
    if "gpt2np" in results.values:
        lines += ratio_table(results)
    lines += limit_table(results, shape)
    lines += memory_line(results, shape)
    lines += [
        "Greedy ids equal those of transformers; largest difference of a logit from its logit: "
    ]
    lines[-1] += ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.1e}'}"
        for name, value in results.difference.items()
        if name not in results.skipped
    )
    return "\n".join([*lines, "", *quiet_lines(results), *missing_lines(results), MEANING, ""])


def quiet_lines(results: Results) -> list[str]:
    """Report the CPU time of other programs and of waiting engines."""
    others = results.others_share or [0.0]
    idle = ", ".join(f"{name} {share:.0%}" for name, share in results.idle_share.items())
    return [
        f"Other programs took {statistics.median(others):.0%} of a core (median over all "
        f"measurements; at most {max(others):.0%}; load average before the run: "
        f"{results.facts['load before']:.2f}). Waiting engines took at most: {idle or '–'}.",
        "",
    ]


def missing_lines(results: Results) -> list[str]:
    """List skipped engines and unsupported workloads, with reasons."""
    lines = [f"- {name} is skipped: {why}" for name, why in results.skipped.items()]
    for engine, works in results.unsupported.items():
        for reason in dict.fromkeys(works.values()):
            names = [name for name, why in works.items() if why == reason]
            lines.append(f"- {engine} has no {', '.join(names)}: {reason}")
    return lines
