"""Compare gpt2np with transformers, CTranslate2, ONNX Runtime and llama.cpp.

    pip install torch transformers ctranslate2 onnxruntime onnx llama-cpp-python gguf
    python benchmarks/compare.py --json results.json > report.md

All engines compute in float32 with the same random weights in GPT-2's shape. The program writes the
weights once, to the folder --work. Each engine has its own process, which answers one request after
another. Within a round the engines take turns, and only one engine computes at a time.

The program skips an engine that is not installed or whose greedy ids differ from those of
transformers. With --old, another checkout of gpt2np takes part as one more engine:

    git worktree add ../before HEAD~1
    python benchmarks/compare.py --old ../before --engines gpt2np
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import CHECKOUT, SHAPES, VOCABULARY, cpu_name, environment, is_setting, markdown, say
from compare_engines import BATCH_CONTEXT, ENGINES, OLD

PROMPT = "Hello there my friend,"  # 5 tokens
CONTEXT = 1024  # of the measurement of memory
PAUSE = 0.3  # seconds before each measurement: idle OpenMP threads spin for up to 0.2
TIMEOUT = 900  # seconds for one answer


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


WORKLOADS = [
    Workload("prefill 512", "prefill", 512, "tokens/s", 0),
    Workload("prefill 1000", "prefill", 1000, "tokens/s", 0),
    Workload("decode at 64", "decode", 64, "tokens/s"),
    Workload("decode at 900", "decode", 900, "tokens/s"),
    *(Workload(f"batch {n}", "batch", n, "tokens/s") for n in (1, 2, 4, 8, 16, 32)),
    Workload("start", "start", 0, "s ↓", 2),
    Workload("peak memory", "memory", CONTEXT, "MiB ↓", 0),
]
MEANING = f"""\
- prefill n: from the ids of a prompt of n tokens to the next id. decode at n: new tokens of one
  sequence; n is the context in the middle of the measured steps. batch n: new tokens of n
  sequences together, from {BATCH_CONTEXT} tokens of context on. Greedy choice is included.
- start: a new process, from its start to the first token after a prompt of 5 tokens. gpt2np runs
  `gpt2np generate` to its exit; the other engines run a program that exits without cleaning up.
- peak memory: most resident memory of a new process that loads the model, reads a prompt and
  decodes up to a context of {CONTEXT}, plus the memory of its child processes that is not shared.
- ↓ less is better. Ratios are formed within a round; median (min–max) over the rounds.
- llama.cpp runs with its defaults: keys and values in float16. All other numbers are float32."""


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


def checkout_of(args: argparse.Namespace, engine: str) -> Path:
    """Return the checkout whose gpt2np an engine imports."""
    return args.old if engine == OLD else CHECKOUT


def process_options(args: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Return the current folder and the environment of an engine's process."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables = dict.fromkeys(names, str(args.threads))
    variables |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if engine in ("gpt2np", OLD):  # as gpt2np's commands do
        variables["OPENBLAS_THREAD_TIMEOUT"] = "20"
    checkout = checkout_of(args, engine)
    return {"cwd": checkout, "env": environment(checkout, **variables), "encoding": "utf-8"}


class Worker:
    """The process of one engine."""

    def __init__(self, engine: str, args: argparse.Namespace, folder: Path) -> None:
        program = Path(__file__).with_name("compare_engines.py")
        command = [sys.executable, str(program), engine, str(folder), str(args.threads)]
        with (folder / f"{engine}.log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                **process_options(args, engine),
            )

    def answer(self) -> dict[str, Any]:
        """Return the next answer; {"failed": reason} if there is none."""
        assert self.process.stdout
        timer = threading.Timer(TIMEOUT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line:
            message: dict[str, Any] = json.loads(line)
            return message
        return {"failed": f"its process ended with code {self.process.wait()}"}

    def ask(self, task: str, argument: Any) -> dict[str, Any]:
        """Send a task and return its answer."""
        assert self.process.stdin
        with contextlib.suppress(OSError):
            print(json.dumps([task, argument]), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        """Let the process end, and wait for it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def time_start(engine: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time a new process from its start to the first token; gpt2np runs its own command."""
    threads = str(args.threads)
    if engine in ("gpt2np", OLD):
        command = ["-m", "gpt2np", "generate", PROMPT, "--model", str(folder)]
        command += ["-n", "1", "--greedy", "--threads", threads]
    else:
        program = Path(__file__).with_name("compare_engines.py")
        command = [str(program), engine, str(folder), threads, PROMPT]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        timeout=TIMEOUT,
        **process_options(args, engine),
    )
    seconds = time.perf_counter() - start
    if done.returncode or not done.stdout:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {"value": seconds}


def measure_memory(engine: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure the peak memory of a new process."""
    worker = Worker(engine, args, folder)
    answer = worker.answer()
    if "ready" in answer:
        answer = worker.ask("memory", CONTEXT)
    worker.close()
    return answer


class Comparison:
    """The processes of all engines, and the results of all rounds."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.results = args, folder, Results()
        self.results.facts = facts(args)
        left_out = () if VOCABULARY.is_dir() else ("start",)
        self.works = [w for w in WORKLOADS if w.group in args.only and w.group not in left_out]
        self.workers: dict[str, Worker] = {}

    def skip(self, engine: str, reason: str) -> None:
        """Drop an engine for the rest of the run."""
        say(f"{engine} is skipped: {reason}")
        self.results.skipped[engine] = reason
        self.workers.pop(engine).close()

    def start(self) -> None:
        """Load the engines, and check their greedy ids."""
        for engine in self.args.engines:
            # pip compiles an installed package; a checkout would be compiled at every start.
            compileall.compile_dir(checkout_of(self.args, engine) / "gpt2np", quiet=1)
            self.workers[engine] = worker = Worker(engine, self.args, self.folder)
            answer = worker.answer()
            self.results.versions[engine] = answer.get("ready", "")
            if "ready" in answer:
                answer = worker.ask("check", str(self.folder / "reference.npz"))
            if "failed" in answer:
                self.skip(engine, answer["failed"])
            elif not answer["equal"]:
                self.skip(engine, "its greedy ids are not those of transformers")
            self.results.difference[engine] = answer.get("difference")

    def run_round(self, number: int) -> None:
        """Measure everything once; another engine begins each round."""
        for work in self.works:
            if number and work.group == "memory":
                continue
            say(f"round {number + 1} of {self.args.rounds}: {work.name}")
            first = number % max(1, len(self.workers))
            for engine in [*list(self.workers)[first:], *list(self.workers)[:first]]:
                if work.name not in self.results.unsupported.get(engine, {}):
                    self.measure(engine, work)

    def measure(self, engine: str, work: Workload) -> None:
        """Measure one engine at one workload."""
        time.sleep(PAUSE)
        if work.group == "start":
            answer = time_start(engine, self.args, self.folder)
        elif work.group == "memory":
            answer = measure_memory(engine, self.args, self.folder)
        else:
            answer = self.workers[engine].ask(work.group, work.argument)
        if "value" in answer:
            values = self.results.values.setdefault(engine, {})
            values.setdefault(work.name, []).append(answer["value"])
        else:
            self.results.unsupported.setdefault(engine, {})[work.name] = answer["failed"]
        if self.workers[engine].process.poll() is not None:
            self.skip(engine, f"its process ended at {work.name!r}")


def commit_of(checkout: Path | None) -> str:
    """Return the commit of a checkout, marked if there are uncommitted changes."""
    if not checkout:
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """Describe the machine, the versions and the options of the run."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "commit": commit_of(CHECKOUT),
        "old commit": commit_of(args.old),
        "shape": args.shape,
        "threads": args.threads,
        "rounds": args.rounds,
        "left out": [f"{k}={v}" for k, v in os.environ.items() if is_setting(k)],
        "load before": os.getloadavg()[0],
    }


def report(results: Results) -> str:
    """Return the whole report in Markdown."""
    f = results.facts
    old = f" (old: {f['old commit']})" if f["old commit"] else ""
    versions = ", ".join(f"{name} {text}" for name, text in results.versions.items() if text)
    differences = ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.1e}'}"
        for name, value in results.difference.items()
        if name not in results.skipped
    )
    lines = [
        f"# GPT-2 {f['shape']}, float32, {f['threads']} threads",
        "",
        f"{f['date']}, {f['cpu']}, {f['cores']} cores, {f['system']}; gpt2np at "
        f"{f['commit']}{old}; {versions}. Rounds: {f['rounds']}; load average before: "
        f"{f['load before']:.2f}; engines take turns."
        f" Variables of the shell left out: {', '.join(f['left out']) or 'none'}.",
        "",
        *tables(results),
        f"Greedy ids equal those of transformers; largest difference of a logit: {differences}",
        "",
        *(f"- {name} is skipped: {why}" for name, why in results.skipped.items()),
    ]
    for engine, works in results.unsupported.items():
        lines += [f"- {engine} has no {work}: {why}" for work, why in works.items()]
    return "\n".join([*lines, MEANING, ""])


def tables(results: Results) -> Iterator[str]:
    """Yield the lines of two tables: the values of all engines, and gpt2np ÷ each other engine."""
    engines, cpu = list(results.values), results.facts["cpu"]
    measured = {name for values in results.values.values() for name in values}
    works = [work for work in WORKLOADS if work.name in measured]
    head = [f"{cpu}: median (min–max)", *engines]
    yield from (markdown(*head), markdown(*["---"] * len(head)))
    for work in works:
        values = [results.values[engine].get(work.name, []) for engine in engines]
        yield markdown(f"{work.name}, {work.unit}", *(cell(found, work.digits) for found in values))
    yield ""
    ours = results.values.get("gpt2np", {})
    peers = [engine for engine in engines if engine != "gpt2np"]
    head = [f"{cpu}: gpt2np ÷", *peers]
    yield from (markdown(*head), markdown(*["---"] * len(head)))
    for work in works:
        theirs = [results.values[peer].get(work.name, []) for peer in peers]
        pairs = [zip(ours.get(work.name, []), values, strict=False) for values in theirs]
        ratios = [cell([a / b for a, b in both], 2) for both in pairs]
        yield markdown(f"{work.name}{' ↓' if '↓' in work.unit else ''}", *ratios)
    yield ""


def cell(values: list[float], digits: int) -> str:
    """Format the median of values, with their range."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def old_checkout(text: str) -> Path:
    """Return the path of another checkout of gpt2np."""
    path = Path(text).resolve()
    if not (path / "gpt2np").is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no checkout: it has no folder gpt2np")
    return path


def parse() -> argparse.Namespace:
    """Read the command line."""
    groups = list(dict.fromkeys(work.group for work in WORKLOADS))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    engines = "engines to measure (default: all)"
    add("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help=engines)
    works = "workloads to measure (default: all)"
    add("--only", nargs="+", choices=groups, default=groups, help=works)
    add("--old", type=old_checkout, metavar="PATH", help="another checkout to compare with")
    add("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    add("--threads", type=int, default=2, help="threads of each engine (default: %(default)s)")
    add("--shape", choices=SHAPES, default="small", help="size of GPT-2 (default: %(default)s)")
    work = Path(tempfile.gettempdir()) / "gpt2np-compare"
    add("--work", type=Path, default=work, help="folder of the files (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every measured value to FILE")
    args = parser.parse_args()
    args.work = args.work.resolve()
    if args.old:
        args.engines.insert(1, OLD)  # beside gpt2np, if that is the first
    return args


def main() -> int:
    """Run the comparison, and write the report."""
    args = parse()
    name = args.shape if VOCABULARY.is_dir() else f"{args.shape}-without-vocabulary"
    folder: Path = args.work / name
    if not (folder / "reference.npz").exists():  # torch stays out of this process
        say(f"writing the weights to {folder}")
        program = Path(__file__).with_name("compare_models.py")
        subprocess.run([sys.executable, str(program), str(folder), args.shape], check=True)
    comparison = Comparison(args, folder)
    try:
        comparison.start()
        for number in range(args.rounds):
            comparison.run_round(number)
    finally:
        for worker in comparison.workers.values():
            worker.close()
    results = comparison.results
    if args.json:
        args.json.write_text(json.dumps(asdict(results), indent=1), encoding="utf-8")
    print(report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
