"""What only a fresh process can tell: how long it takes to the first token, and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt2np.benchmark.timing import Timing, seconds_of
from gpt2np.errors import GPT2NPError

PROMPT = "The meaning of life is"  # five tokens of GPT-2's


@dataclass(frozen=True)
class Memory:
    """A process that has filled the model's context, in bytes.

    Attributes:
        peak: the most that it had in memory at once; None where the system doesn't tell.
        weights: of the model's arrays.
        kv_cache: of the keys and values of a full context.
    """

    peak: int | None
    weights: int
    kv_cache: int

    @property
    def times_of_least(self) -> float | None:
        """The peak, of weights and keys and values: what can't be avoided."""
        return self.peak / (self.weights + self.kv_cache) if self.peak else None


def start(folder: Path, dtype: str, runs: int) -> Timing:
    """From a `gpt2np generate` being started to its first token; files are in the system's cache.

    Raises:
        GPT2NPError: it fails.
    """
    options = ["--model", str(folder.absolute()), "--dtype", dtype, "-n", "1", "--greedy"]
    command = [sys.executable, "-m", "gpt2np", "generate", PROMPT, "--no-echo", *options]
    return Timing(tuple(seconds_of(lambda: _first_byte(command)) for _ in range(runs)))


def _first_byte(command: Sequence[str]) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout and process.stderr
        if not process.stdout.read(1):
            raise _failure(process.stderr.read())
    finally:
        process.kill()  # all that is left to it is to say goodbye
        process.communicate()


def memory(folder: Path, dtype: str) -> Memory:
    """A process that fills the context of the model, its last tokens one by one.

    Raises:
        GPT2NPError: it fails.
    """
    module = "gpt2np.benchmark.peak_memory"
    command = [sys.executable, "-m", module, str(folder.absolute()), dtype]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if result.returncode:
        raise _failure(result.stderr)
    return Memory(**json.loads(result.stdout))


def _failure(stderr: bytes) -> GPT2NPError:
    lines = stderr.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return GPT2NPError(f"a process of its own for a measurement failed: {last}")
