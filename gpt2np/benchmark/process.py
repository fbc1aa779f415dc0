"""Measurements in a new process: time to the first token, and peak memory.

`python -m gpt2np.benchmark.process FOLDER DTYPE PROCESSES` loads the model in FOLDER, fills its
context, and prints the memory use of its processes as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from gpt2np.benchmark.timing import Timing, seconds_of
from gpt2np.errors import GPT2NPError
from gpt2np.hub.model_files import VOCABULARY_FILES
from gpt2np.model import GPT2, last_token_indices
from gpt2np.runtime.kv_cache import cache_nbytes
from gpt2np.tokenizer import Tokenizer

Processes = int | Literal["auto"]

PROMPT = "The meaning of life is"  # five of GPT-2's tokens

_DECODED = 16  # last tokens of the context, decoded one by one; all earlier tokens are prefilled


def time_to_first_token(
    folder: Path, dtype: str, weights: str | None, processes: Processes, n_positions: int, runs: int
) -> Timing:
    """Time `gpt2np generate` from the start of its process to its first token.

    After the first run, the model's files are in the operating system's page cache. The prompt is
    cut to fit into a context of `n_positions` tokens even if each character is a token.
    """
    command = [sys.executable, "-m", "gpt2np", "generate", PROMPT[: n_positions - 1]]
    command += ["--model", str(folder.absolute()), "--dtype", dtype, "--processes", str(processes)]
    command += ["--weights", weights] if weights else []
    command += ["--no-echo", "-n", "1", "--greedy"]
    return Timing(tuple(seconds_of(lambda: _read_first_byte(command)) for _ in range(runs)))


def _read_first_byte(command: Sequence[str]) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout and process.stderr
        if not process.stdout.read(1):
            raise _process_error(process.stderr.read())
    finally:
        process.kill()  # after the first token, there is nothing left to measure
        process.communicate()


def measure_memory(
    folder: Path, dtype: str, weights: str | None, processes: Processes
) -> dict[str, Any]:
    """Call `fill_context` in a new process: measure the memory of a model with full context."""
    program = [sys.executable, "-m", "gpt2np.benchmark.process"]
    command = [*program, str(folder.absolute()), dtype, weights or "", str(processes)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if result.returncode:
        raise _process_error(result.stderr)
    memory: dict[str, Any] = json.loads(result.stdout)
    return memory


def _process_error(stderr: bytes) -> GPT2NPError:
    lines = stderr.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "no error output")
    return GPT2NPError(f"the benchmark's process failed: {last}")


def fill_context(folder: str, dtype: str, weights: str, processes: str) -> dict[str, Any]:
    """Load a model, fill its context, and return the memory in bytes of all its processes.

    The result has the resident memory ("peak", None if the system does not report it), and the
    sizes of the weights and of the KV cache. "times_of_least" is the peak divided by their sum.
    """
    model = GPT2.from_folder(folder, dtype, "int8" if weights else None)
    model.processes = "auto" if processes == "auto" else int(processes)
    # In normal use, the vocabulary is in memory, too.
    _vocabulary = None if VOCABULARY_FILES.missing_in(Path(folder)) else Tokenizer.load(folder)
    context, cache = model.config.n_positions, model.new_cache()
    pending = [number % model.config.vocab_size for number in range(max(1, context - _DECODED))]
    while cache.length + len(pending) <= context:
        logits = model.forward([pending], [cache], logits_indices=last_token_indices([pending]))
        pending = [int(logits[-1].argmax())]
    kv_cache = cache_nbytes(model.config, context, model.dtype)
    peak, nbytes = peak_memory(model.worker_pids), model.weights.nbytes
    times = peak / (nbytes + kv_cache) if peak else None
    return {"peak": peak, "weights": nbytes, "kv_cache": kv_cache, "times_of_least": times}


def peak_memory(workers: Sequence[int] = ()) -> int | None:
    """Return the peak resident memory in bytes; None if the system does not report it.

    On Linux, the result is the peak of this process plus the current memory of the workers. Pages
    that workers share with this process count once. On other systems, workers are not counted.
    """
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would include the parent process's peak
        for line in status.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 + _worker_memory(workers)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _worker_memory(workers: Sequence[int]) -> int:
    """Return the memory in bytes of the workers, without pages shared with this process."""
    if not workers:
        return 0
    # Proportional set sizes of all processes, without the resident set of this process.
    proportional = sum(_smaps_field(str(process), "Pss") for process in ("self", *workers))
    return max(0, proportional - _smaps_field("self", "Rss"))


def _smaps_field(process: str, field: str) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return int(text.split(f"\n{field}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(fill_context(*sys.argv[1:])))
