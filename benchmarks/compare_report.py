"""Workloads and results of compare.py, and the report in Markdown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from compare_engines import BATCH_CONTEXT, DRAFT_CONTEXT, DRAFT_ROWS

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
        facts: machine, versions and options.
    """

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, dict[str, str]] = field(default_factory=dict)
    difference: dict[str, float | None] = field(default_factory=dict)
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
  slower in float32. All other engines compute in float32 throughout. ONNX Runtime runs a graph of
  standard ONNX operators (Attention of opset 23). transformers runs sdpa."""


def listed(title: str, names: list[str]) -> str:
    """Return a sentence that lists names, or "" if there are none."""
    return f" {title}: {', '.join(names)}." if names else ""


def report(results: Results) -> str:
    """Return the whole report in Markdown."""
    f = results.facts
    old = f" (old: {f['old commit']})" if f["old commit"] else ""
    versions = ", ".join(
        f"{name} {version}" for name, version in results.versions.items() if version
    )
    lines = [
        f"# GPT-2 {f['shape']}, float32, {f['threads']} threads",
        "",
        f"{f['date']}, {f['cpu']}, {f['cores']} cores, {f['system']}, Python {f['python']}, NumPy "
        f"{f['numpy']}, kernels {f['kernels']}; gpt2np at {f['commit']}{old}; {versions}. "
        f"Rounds: {f['rounds']}; load average before: {f['load before']:.2f}; engines "
        f"take turns.{listed('Variables', f['environment'])}"
        f"{listed('Variables of the shell left out', f['left out'])}",
        "",
        *speed_table(results),
    ]
    if "gpt2np" in results.values:
        lines += ratio_table(results)
    lines += [
        "Greedy ids equal those of transformers; largest difference of a logit from its logit: "
    ]
    lines[-1] += ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.1e}'}"
        for name, value in results.difference.items()
        if name not in results.skipped
    )
    return "\n".join([*lines, "", *missing_lines(results), MEANING, ""])


def missing_lines(results: Results) -> list[str]:
    """List skipped engines and unsupported workloads, with reasons."""
    lines = [f"- {name} is skipped: {why}" for name, why in results.skipped.items()]
    for engine, works in results.unsupported.items():
        for reason in dict.fromkeys(works.values()):
            names = [name for name, why in works.items() if why == reason]
            lines.append(f"- {engine} has no {', '.join(names)}: {reason}")
    return lines
