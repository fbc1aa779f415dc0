"""Time and memory of the commands for corpora: with and without Ray, and of small and large files.

    python benchmarks/corpus_jobs.py ray [--documents 1500] [--rounds 2]
    python benchmarks/corpus_jobs.py memory [COMMAND ...] [--megabytes 10 1000]

`ray` scores the same documents with the plain command and with workers on this machine, in turns,
and compares the bytes. `memory` runs each command on a small and a large file. `encode` encodes
text. The documents of `score`, and the prompts of `generate`, have a few tokens each, beside 20,000
characters that are read only (generate: read, and copied to the result), because the model's time
for a gigabyte of text would be days. Memory is the peak of the proportional set size (PSS), summed
over a command and the processes that it starts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from score_corpus import STORIES, natural_documents

GPT2NP = [sys.executable, "-m", "gpt2np"]
MODEL = ["--model", "bundled"]

CONFIGURATIONS = {
    "plain, 1 core": ["--threads", "1", "--processes", "1"],
    "Ray, 1 worker of 1 CPU": ["--ray", "--workers", "1"],
    "plain, 2 cores": ["--threads", "2"],
    "Ray, 1 worker of 2 CPUs": ["--ray", "--workers", "1", "--cpus-per-worker", "2"],
    "Ray, 2 workers of 1 CPU": ["--ray", "--workers", "2"],
}


def measure(command: Sequence[object]) -> tuple[float, float]:
    """Run a command; return its wall time in seconds, and its peak memory in MiB."""
    start, peak = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen([str(part) for part in command], stderr=messages)
        while process.poll() is None:
            peak = max(peak, tree_pss(process.pid))
            time.sleep(0.2)
        messages.seek(0)
        if process.returncode:
            raise SystemExit(messages.read().decode())
    return time.perf_counter() - start, peak


def tree_pss(pid: int) -> float:
    """Return the proportional set size, in MiB, of a process and its descendants."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        children = [file.read_text().split() for file in folder.glob("task/*/children")]
    except OSError:  # the process has ended
        return 0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return own + sum(tree_pss(int(child)) for ids in children for child in ids)


def compare_with_ray(folder: Path, n_documents: int, rounds: int) -> None:
    """Print the time and memory of `score` in each of CONFIGURATIONS."""
    texts = folder / "texts.jsonl"
    documents = natural_documents(n_documents, STORIES)
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONFIGURATIONS}
    outputs = set()
    for _ in range(rounds):
        for name, options in CONFIGURATIONS.items():
            out = folder / "scores.jsonl"
            out.unlink(missing_ok=True)
            found[name].append(measure([*GPT2NP, "score", texts, "--out", out, *MODEL, *options]))
            outputs.add(out.read_bytes())
    n_tokens = sum(json.loads(line)["tokens"] for line in outputs.copy().pop().splitlines())
    print(f"\n{n_documents} documents, {n_tokens:,} tokens; different outputs: {len(outputs)}\n")
    print("| | wall time (of each round) | tokens/s | peak memory |\n|---|---:|---:|---:|")
    for name, values in found.items():
        times, peaks = zip(*values, strict=True)
        listed = ", ".join(f"{seconds:.0f}" for seconds in times)
        speed = n_tokens / statistics.median(times)
        print(f"| {name} | {listed} s | {speed:,.0f} | {max(peaks):,.0f} MiB |", flush=True)


def write_text(path: Path, megabytes: int) -> None:
    """Write stories, as often as it takes."""
    text = STORIES.with_name("train.txt").read_bytes()
    with path.open("wb") as file:
        while file.tell() < megabytes * 10**6:
            file.write(text[: megabytes * 10**6 - file.tell()] + b"\n<|endoftext|>\n")


def write_records(path: Path, megabytes: int, short: str, long: str) -> None:
    """Write JSON objects with a short text in one field and 20,000 characters in another."""
    story = STORIES.read_text(encoding="utf-8")
    with path.open("w", encoding="utf-8") as file:
        for number in range(megabytes * 10**6 // 20_400):
            start = number * 37 % (len(story) - 20_000)
            record = {short: f"The king {number}", long: story[start : start + 20_000]}
            file.write(json.dumps(record) + "\n")


def memory_jobs() -> dict[str, tuple[Callable[[Path, int], None], str, list[str]]]:
    """Return, by command: a function that writes the input, its suffix, and the arguments."""

    def texts(path: Path, megabytes: int) -> None:
        write_records(path, megabytes, "text", "raw")

    def prompts(path: Path, megabytes: int) -> None:
        write_records(path, megabytes, "prompt", "id")

    return {
        "encode": (write_text, ".txt", ["encode", "IN", "OUT.bin"]),
        "score": (texts, ".jsonl", ["score", "IN", "--out", "OUT.jsonl"]),
        "generate": (
            prompts,
            ".jsonl",
            ["generate", "--prompts", "IN", "--out", "OUT.jsonl", "-n", "1", "--seed", "1"],
        ),
    }


def compare_memory(folder: Path, commands: Sequence[str], sizes: Sequence[int]) -> None:
    """Print the time and memory of each command on files of each size in megabytes."""
    print("| command | input | wall time | peak memory |\n|---|---:|---:|---:|")
    for name, (write, suffix, arguments) in memory_jobs().items():
        for size in sizes if not commands or name in commands else ():
            source, out = folder / f"in{suffix}", folder / "out"
            write(source, size)
            names = {"IN": source, "OUT.bin": f"{out}.bin", "OUT.jsonl": f"{out}.jsonl"}
            given = [names.get(argument, argument) for argument in arguments]
            seconds, peak = measure([*GPT2NP, *given, *MODEL])
            read = source.stat().st_size / 1e6
            print(f"| {name} | {read:,.0f} MB | {seconds:.0f} s | {peak:.0f} MiB |", flush=True)
            for path in folder.iterdir():
                path.unlink()


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True, dest="table")
    ray = commands.add_parser("ray")
    ray.add_argument("--documents", type=int, default=1500)
    ray.add_argument("--rounds", type=int, default=2)
    memory = commands.add_parser("memory")
    memory.add_argument("commands", nargs="*")
    memory.add_argument("--megabytes", type=int, nargs="+", default=[10, 1000])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.table == "ray":
            compare_with_ray(Path(folder), args.documents, args.rounds)
        else:
            compare_memory(Path(folder), args.commands, args.megabytes)


if __name__ == "__main__":
    main()
