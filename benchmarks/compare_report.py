"""What compare.py measures, what came of it, and the report in Markdown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from compare_engines import BATCH_CONTEXT, DRAFT_CONTEXT, DRAFT_ROWS
from compare_models import SHAPES

CONTEXT = 1024
DRAFT_RATIO = f"{DRAFT_ROWS} rows ÷ 1 row"


@dataclass(frozen=True)
class Work:
    """One row of the table."""

    name: str
    group: str
    argument: int
    unit: str
    digits: int = 1


BATCHES = (1, 2, 4, 8, 16, 32)
WORKS = [
    Work("prefill 512", "prefill", 512, "tokens/s", 0),
    Work("prefill 1000", "prefill", 1000, "tokens/s", 0),
    Work("decode at 64", "decode", 64, "tokens/s"),
    Work("decode at 900", "decode", 900, "tokens/s"),
    *(Work(f"batch {n}", "batch", n, "tokens/s") for n in BATCHES),
    Work("1 row", "rows", 1, "ms ↓"),
    Work(f"{DRAFT_ROWS} rows", "rows", DRAFT_ROWS, "ms ↓"),
    Work("start", "start", 0, "s ↓", 2),
    Work("peak memory", "memory", CONTEXT, "MiB ↓", 0),
]
DERIVED = [  # of these two
    *((f"batch {n} ÷ batch 1", f"batch {n}", "batch 1") for n in BATCHES[1:]),
    (DRAFT_RATIO, f"{DRAFT_ROWS} rows", "1 row"),
]


@dataclass
class Results:
    """What came of a run: values[engine][work] has one number for each round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, dict[str, str]] = field(default_factory=dict)
    difference: dict[str, float | None] = field(default_factory=dict)
    idle_share: dict[str, float] = field(default_factory=dict)  # of a core, at most
    others_share: list[float] = field(default_factory=list)  # of a core, for each measurement
    bandwidth: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, engine: str, work: str, value: float) -> None:
        self.values.setdefault(engine, {}).setdefault(work, []).append(value)


def add_derived(results: Results) -> None:
    """Ratios of one engine's own rows, round by round."""
    for values in results.values.values():
        for name, above, below in DERIVED:
            if above in values and below in values:
                pairs = zip(values[above], values[below], strict=False)
                values[name] = [a / b for a, b in pairs]


def cell(values: list[float] | None, digits: int) -> str:
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def shown_works(results: Results) -> list[Work]:
    """The rows that any engine has, the derived ones among them."""
    works = [*WORKS, Work("peak while decoding", "memory", CONTEXT, "MiB ↓", 0)]
    works += [Work(name, "", 0, "×", 2) for name, _, _ in DERIVED]
    return [work for work in works if any(work.name in found for found in results.values.values())]


def speed_table(results: Results) -> list[str]:
    engines = list(results.values)
    rows = [
        [f"{work.name}, {work.unit}"]
        + [cell(results.values[engine].get(work.name), work.digits) for engine in engines]
        for work in shown_works(results)
    ]
    return table(["median (min–max)", *engines], rows)


def ratio_table(results: Results) -> list[str]:
    """gpt2np ÷ each peer, the median over the rounds of the ratios within a round."""
    ours, peers = results.values["gpt2np"], [name for name in results.values if name != "gpt2np"]
    rows = []
    for work in shown_works(results):
        if work.unit != "×" and work.name in ours:
            row = [f"{work.name}{' ↓' if '↓' in work.unit else ''}"]
            for peer in peers:
                theirs = results.values[peer].get(work.name, [])
                pairs = zip(ours[work.name], theirs, strict=False)
                row.append(cell([a / b for a, b in pairs], 2))
            rows.append(row)
    return table(["gpt2np ÷", *peers], rows)


def limits(shape: str, bandwidth: float, peak: float) -> dict[str, float]:
    """The most tokens/s that this machine can give: float32 weights read once a token, or FLOPs."""
    layers, _, channels = SHAPES[shape]
    matrices = 12 * layers * channels**2
    unembedding = 50257 * channels
    found = {}
    for context in (64, 900):
        read = 4 * (matrices + unembedding + 2 * layers * channels * context)
        found[f"decode at {context}"] = bandwidth * 1e9 / read
    for tokens in (512, 1000):
        attention = layers * channels * tokens  # keys and values; a token sees half of the text
        operations = 2 * tokens * (matrices + attention) + 2 * unembedding
        found[f"prefill {tokens}"] = peak * 1e9 * tokens / operations
    return found


def limit_table(results: Results, shape: str) -> list[str]:
    """Shares of the best bandwidth and peak of the run."""
    found = limits(shape, max(results.bandwidth), max(results.peak))
    engines = list(results.values)
    rows = []
    for name, limit in found.items():
        medians = [results.values[engine].get(name) for engine in engines]
        if any(medians):
            shares = [f"{statistics.median(m) / limit:.0%}" if m else "–" for m in medians]
            rows.append([f"{name} (limit {limit:.0f} tokens/s)", *shares])
    return table(["share of the limit", *engines], rows) if rows else []


def memory_line(results: Results, shape: str) -> list[str]:
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
- prefill: ids of a whole prompt → the next id. decode at n: new tokens of one sequence, half of
  them before n tokens of context, half after. batch n: that many sequences of {BATCH_CONTEXT}
  tokens and more together, tokens of all counted. rows: so many new tokens of one sequence in one
  call at {DRAFT_CONTEXT} tokens of context, with all their logits. Greedy choice included.
- start: a new process from its start to the first token after a prompt of 5 tokens, tokenizer
  included; for gpt2np its command `gpt2np generate`, up to its end, for the others a program that
  leaves without cleaning up.
- peak memory: the most that was resident (VmHWM, mapped files included) in a new process that
  loads, takes a prompt and decodes up to a context of {CONTEXT}, and what its child processes have
  besides; while decoding: from the first new token on.
- ↓ less is better. Ratios are those within a round, their median (min–max) over the rounds.
- gpt2np: `model.processes` is the number of threads, as for its commands.
- llama.cpp runs as it comes, weights in float32, keys and values in float16, flash attention where
  it takes it; llama.cpp-float32 with keys and values in float32 and without flash attention, which
  is slower then. The others compute in float32 throughout. plain-numpy is picoGPT's way, everything
  anew for each token, yet in float32, where picoGPT slips into float64. ONNX Runtime runs a graph
  of ONNX's own operators (Attention of opset 23). transformers: sdpa."""


def listed(title: str, names: list[str]) -> str:
    return f" {title}: {', '.join(names)}." if names else ""


def report(results: Results) -> str:
    """All in Markdown."""
    f, shape = results.facts, results.facts["shape"]
    versions = ", ".join(
        f"{name} {version}" for name, version in results.versions.items() if version
    )
    lines = [
        f"# GPT-2 {shape}, float32, {f['threads']} threads",
        "",
        f"{f['date']}, {f['cpu']}, {f['cores']} cores, {f['system']}, Python {f['python']}, NumPy "
        f"{f['numpy']}; gpt2np at {f['commit']}; {versions}. rounds: {f['rounds']}, the engines in "
        f"turn.{listed('Variables', f['environment'])}"
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
    lines += ["Greedy ids equal transformers'; the largest difference of a logit from its: "]
    lines[-1] += ", ".join(
        f"{name} {'not to be had' if value is None else f'{value:.1e}'}"
        for name, value in results.difference.items()
        if name not in results.skipped
    )
    return "\n".join([*lines, "", *quiet_lines(results), *missing_lines(results), MEANING, ""])


def quiet_lines(results: Results) -> list[str]:
    """How undisturbed the run was."""
    others = results.others_share or [0.0]
    idle = ", ".join(f"{name} {share:.0%}" for name, share in results.idle_share.items())
    return [
        f"Other programs took {statistics.median(others):.0%} of a core meanwhile (median of all "
        f"measurements; at most {max(others):.0%}; load before: "
        f"{results.facts['load before']:.2f}). Waiting engines took at most: {idle or '–'}.",
        "",
    ]


def missing_lines(results: Results) -> list[str]:
    lines = [f"- {name} is skipped: {why}" for name, why in results.skipped.items()]
    for engine, works in results.unsupported.items():
        for reason in dict.fromkeys(works.values()):
            names = [name for name, why in works.items() if why == reason]
            lines.append(f"- {engine} has no {', '.join(names)}: {reason}")
    return lines
