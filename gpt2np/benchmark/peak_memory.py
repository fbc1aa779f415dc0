"""`python -m gpt2np.benchmark.peak_memory FOLDER DTYPE`: fill a context, print the memory used."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpt2np.hub import VOCABULARY_FILES
from gpt2np.kernels.threads import thread_count
from gpt2np.model import GPT2, last_token_indices
from gpt2np.runtime.kv_cache import cache_nbytes
from gpt2np.tokenizer import Tokenizer

_DECODED = 16  # tokens; all before them are the prompt


def main(folder: str, dtype: str) -> None:
    """Print the fields of `gpt2np.benchmark.process.Memory` as JSON."""
    model = GPT2.from_folder(folder, dtype)
    model.processes = thread_count()  # as the commands do
    # Whoever uses a model has its vocabulary in memory, too.
    _vocabulary = None if VOCABULARY_FILES.missing_in(Path(folder)) else Tokenizer.load(folder)
    _fill_context(model)
    weights = model.weights.nbytes
    kv_cache = cache_nbytes(model.config, model.config.n_positions, model.dtype)
    peak = peak_memory(model.worker_pids)
    print(json.dumps({"peak": peak, "weights": weights, "kv_cache": kv_cache}))


def _fill_context(model: GPT2) -> None:
    context, cache = model.config.n_positions, model.new_cache()
    prompt = [number % model.config.vocab_size for number in range(max(1, context - _DECODED))]
    pending = prompt
    while cache.length + len(pending) <= context:
        logits = model.forward([pending], [cache], logits_indices=last_token_indices([pending]))
        pending = [int(logits[-1].argmax())]


def peak_memory(others: Sequence[int] = ()) -> int | None:
    """The most bytes that this process has had in memory at once, if the system tells.

    With what other processes have now besides that which they share with this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would count the process that started this one
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 + _besides(others)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _besides(others: Sequence[int]) -> int:
    """Proportional shares: what two processes have in common counts half for each."""
    if not others:
        return 0
    shares = sum(_rollup(str(process), "Pss") for process in ("self", *others))
    return max(0, shares - _rollup("self", "Rss"))


def _rollup(process: str, field: str) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(text.split(f"\n{field}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
