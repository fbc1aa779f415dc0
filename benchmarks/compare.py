"""Compare gpt2np with transformers, CTranslate2, ONNX Runtime and llama.cpp.

    pip install torch transformers ctranslate2 onnxruntime onnx llama-cpp-python gguf
    python benchmarks/compare.py --out report.md --json results.json

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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compare_engines import ENGINES, OLD
from compare_models import PARTS, SHAPES, is_made, make
from compare_report import CONTEXT, WORKLOADS, Results, Workload, add_derived, report

CHECKOUT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("GPT2NP_TEST_DATA", CHECKOUT.parent / "shared" / "data"))
VOCABULARY = DATA / "gpt2-tokenizer"
PROMPT = "Hello there my friend,"  # 5 tokens
PAUSE = 0.3  # seconds before each measurement: idle OpenMP threads spin for up to 0.2
TIMEOUT = 900  # seconds for one answer
NEEDED_PARTS = {
    "ctranslate2": "ctranslate2",
    "onnxruntime": "onnx",
    "llama.cpp": "gguf",
    "llama.cpp-float32": "gguf",
}
NEED_VOCABULARY = ("ctranslate2", "llama.cpp", "llama.cpp-float32", "start")


def checkout_of(args: argparse.Namespace, engine: str) -> Path:
    """Return the checkout whose gpt2np an engine imports."""
    return args.old if engine == OLD else CHECKOUT


def environment(args: argparse.Namespace, engine: str) -> dict[str, str]:
    """Return the environment of an engine's process: threads, no network, the path of gpt2np.

    The shell's settings of BLAS and OpenMP are left out: OPENBLAS_CORETYPE, for one, can slow down
    a single engine. --env adds variables for one engine.
    """
    threads = str(args.threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    path = os.pathsep.join(
        filter(None, [str(checkout_of(args, engine)), os.environ.get("PYTHONPATH")])
    )
    given = [text.split(":", 1) for text in args.env]
    inherited = {k: v for k, v in os.environ.items() if not is_setting(k)}
    return {
        **inherited,
        **dict.fromkeys(names, threads),
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **dict(setting.split("=", 1) for name, setting in given if name == engine),
    }


class Worker:
    """The process of one engine."""

    def __init__(self, engine: str, args: argparse.Namespace, folder: Path) -> None:
        self.engine = engine
        program = Path(__file__).with_name("compare_engines.py")
        command = [sys.executable, str(program), engine, str(folder), str(args.threads)]
        with (folder / f"{engine}.log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=checkout_of(args, engine),
                env=environment(args, engine),
                encoding="utf-8",
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


def seconds_to_first_token(engine: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
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
        encoding="utf-8",
        env=environment(args, engine),
        timeout=TIMEOUT,
        cwd=checkout_of(args, engine),
    )
    seconds = time.perf_counter() - start
    if done.returncode or not done.stdout:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {"value": seconds}


def peak_memory(engine: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
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
        left_out = () if VOCABULARY.is_dir() else NEED_VOCABULARY
        self.works = [w for w in WORKLOADS if w.group in args.only and w.group not in left_out]
        self.workers: dict[str, Worker] = {}

    def skip(self, engine: str, reason: str) -> None:
        """Drop an engine for the rest of the run."""
        say(f"{engine} is skipped: {reason}")
        self.results.skipped[engine] = reason
        if engine in self.workers:
            self.workers.pop(engine).close()

    def start(self) -> None:
        """Write missing model files, load the engines, and check their greedy ids."""
        for engine in self.args.engines:
            # pip compiles an installed package; a checkout would be compiled at every start.
            compileall.compile_dir(checkout_of(self.args, engine) / "gpt2np", quiet=1)
            if reason := make_for(engine, self.args, self.folder):
                self.skip(engine, reason)
            else:
                self.workers[engine] = Worker(engine, self.args, self.folder)
        for engine, worker in list(self.workers.items()):
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
            answer = seconds_to_first_token(engine, self.args, self.folder)
        elif work.group == "memory":
            answer = peak_memory(engine, self.args, self.folder)
        else:
            answer = self.workers[engine].ask(work.group, work.argument)
        if "value" in answer:
            self.results.add(engine, work.name, answer["value"])
            if "decoding" in answer:
                self.results.add(engine, "peak while decoding", answer["decoding"])
        else:
            reason = answer.get("unsupported") or f"failed: {answer['failed']}"
            self.results.unsupported.setdefault(engine, {})[work.name] = reason
        if self.workers[engine].process.poll() is not None:
            self.skip(engine, f"its process ended at {work.name!r}")

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers.values():
            worker.close()


def say(line: str) -> None:
    """Print a progress line to stderr."""
    print(line, file=sys.stderr, flush=True)


def make_for(engine: str, args: argparse.Namespace, folder: Path) -> str:
    """Write the files that an engine reads, if missing; return the reason for a failure, or ""."""
    if engine in NEED_VOCABULARY and not VOCABULARY.is_dir():
        return f"GPT-2's vocabulary is missing: no folder {VOCABULARY}; set GPT2NP_TEST_DATA"
    part = NEEDED_PARTS.get(engine)
    return make_part(part, args, folder) if part else ""


def make_part(part: str, args: argparse.Namespace, folder: Path) -> str:
    """Write one part in a separate process, if missing; return the reason for a failure, or ""."""
    if is_made(part, folder):
        return ""
    say(f"writing {part} to {folder}")
    command = [sys.executable, __file__, "--make", part, "--shape", args.shape]
    done = subprocess.run(
        [*command, "--work", str(args.work)],
        capture_output=True,
        encoding="utf-8",
        env=environment(args, ""),
    )
    failed = done.returncode != 0
    return done.stderr.strip().splitlines()[-1] if failed else ""


def model_folder(args: argparse.Namespace) -> Path:
    """Return the folder of the model's files."""
    known = VOCABULARY.is_dir()
    folder: Path = args.work / (args.shape if known else f"{args.shape}-without-vocabulary")
    return folder


def is_setting(variable: str) -> bool:
    """Tell whether an environment variable configures BLAS or OpenMP."""
    return variable.startswith(("OPENBLAS_", "OMP_", "MKL_"))


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, marked if there are uncommitted changes."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def cpu_name() -> str:
    """Return the processor's name, with the numbers that tell its generation."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    pairs = (line.partition(":") for line in lines)
    cpu = {key.strip(): value.strip() for key, _, value in pairs}
    name, family, model = (cpu.get(key, "?") for key in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})"


def kernels(args: argparse.Namespace) -> str:
    """Return gpt2np's description of its kernels on this processor."""
    code = "from gpt2np.kernels.blas import describe_kernels as d; print(d())"
    command, env = [sys.executable, "-c", code], environment(args, "gpt2np")
    return subprocess.run(command, capture_output=True, text=True, env=env).stdout.strip()


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """Describe the machine, the versions and the options of the run."""
    import numpy as np

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_name(),
        "kernels": kernels(args),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": f"{np.__version__} ({blas['name']} {blas['version']})",
        "commit": commit_of(CHECKOUT),
        "old commit": commit_of(args.old) if args.old else "",
        "shape": args.shape,
        "threads": args.threads,
        "rounds": args.rounds,
        "environment": args.env,
        "left out": [f"{k}={v}" for k, v in os.environ.items() if is_setting(k)],
        "load before": os.getloadavg()[0],
    }


def comma_separated(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated lists of known names."""

    def parse_names(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"no {sorted(unknown)[0]!r} in {', '.join(known)}")
        return text.split(",")

    return parse_names


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
    add(
        "--engines",
        type=comma_separated(ENGINES),
        default=list(ENGINES),
        metavar="NAME,…",
        help=f"engines to measure, of {', '.join(ENGINES)} (default: all)",
    )
    add(
        "--old",
        type=old_checkout,
        metavar="PATH",
        help="another checkout of gpt2np to compare with, for example the commit before a change",
    )
    add(
        "--only",
        type=comma_separated(groups),
        default=groups,
        metavar="NAME,…",
        help=f"workloads to measure, of {', '.join(groups)} (default: all)",
    )
    add("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    add("--threads", type=int, default=2, help="threads of each engine (default: %(default)s)")
    add("--shape", choices=SHAPES, default="small", help="size of GPT-2 (default: %(default)s)")
    work = Path(tempfile.gettempdir()) / "gpt2np-compare"
    add(
        "--work", type=Path, default=work, help="folder of the model's files (default: %(default)s)"
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="ENGINE:NAME=VALUE",
        help="environment variable of one engine; repeatable",
    )
    add("--out", type=Path, metavar="FILE", help="write the report to FILE instead of stdout")
    add("--json", type=Path, metavar="FILE", help="write every measured value to FILE")
    add("--make", choices=["weights", *PARTS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work = args.work.resolve()
    if args.old:
        args.engines.insert(1, OLD)  # beside gpt2np, if that is the first
    return args


def main() -> int:
    """Run the comparison, and write the report."""
    args = parse()
    folder = model_folder(args)
    if args.make:
        make(args.make, folder, args.shape, VOCABULARY if VOCABULARY.is_dir() else None)
        return 0
    known = facts(args)
    if reason := make_part("weights", args, folder):
        say(f"can't make the model: {reason}")
        return 1
    comparison = Comparison(args, folder)
    comparison.results.facts = known
    try:
        comparison.start()
        for number in range(args.rounds):
            comparison.run_round(number)
    finally:
        comparison.close()
    add_derived(comparison.results)
    text = report(comparison.results)
    if args.json:
        args.json.write_text(json.dumps(asdict(comparison.results), indent=1), encoding="utf-8")
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
