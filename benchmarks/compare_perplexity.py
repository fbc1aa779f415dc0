"""Compare the perplexity, speed and memory of gpt2np and transformers on WikiText-2, in float32.

    python benchmarks/compare_perplexity.py FOLDER ../shared/data/eval/wiki.test.hf-joined.txt

FOLDER has a checkpoint and its vocabulary. Consecutive windows have the length of the context. Each
engine has its own process. The engines take turns after a few windows, so that other load on the
machine affects both. transformers runs the loop of Hugging Face's guide.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Pass = Callable[[Ids], tuple[float, int]]
"""Ids → the sum of the log probabilities, and the number of scored tokens."""

WARM_UP = 128  # tokens, not timed


def gpt2np_pass(folder: str) -> tuple[Pass, int]:
    """Return a scoring function with `gpt2np.generation.scoring`, and the context length."""
    from gpt2np.generation.scoring import score_texts
    from gpt2np.model import GPT2

    model = GPT2.from_folder(folder)
    context = model.config.n_positions

    def score(ids: Ids) -> tuple[float, int]:
        [result] = score_texts(model, [ids], None, context, context)
        return result.total, int(np.isfinite(result.logprobs).sum())

    return score, context


def transformers_pass(folder: str) -> tuple[Pass, int]:
    """Return a scoring function with the loss of transformers, and the context length."""
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model: Any = GPT2LMHeadModel.from_pretrained(folder, dtype="float32")
    model.train(False)
    context: int = model.config.n_positions

    def score(ids: Ids) -> tuple[float, int]:
        total, count = 0.0, 0
        for start in range(0, len(ids), context):
            window = torch.tensor(ids[start : start + context])[None]
            if window.shape[1] > 1:
                with torch.inference_mode():
                    loss = model(window, labels=window).loss
                total -= float(loss) * (window.shape[1] - 1)
                count += window.shape[1] - 1
        return total, count

    return score, context


ENGINES = {"gpt2np": gpt2np_pass, "transformers": transformers_pass}


def work(engine: str, folder: str, file: str) -> None:
    """Answer each line [first, stop] with the time and the result of scoring those ids."""
    from gpt2np.benchmark.process import peak_memory

    score, context = ENGINES[engine](folder)
    ids = np.load(file)
    score(ids[:WARM_UP])
    print(json.dumps(context), flush=True)
    for line in sys.stdin:
        first, stop = json.loads(line)
        start = time.perf_counter()
        total, count = score(ids[first:stop])
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, total, count, peak_memory()]), flush=True)


class Worker:
    """The process of one engine."""

    def __init__(self, engine: str, folder: str, file: Path, threads: int) -> None:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, str(threads))}
        environment |= {"OPENBLAS_THREAD_TIMEOUT": "20"} if engine == "gpt2np" else {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", engine, folder, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.context = int(self.answer())
        self.seconds, self.total, self.count, self.peak = 0.0, 0.0, 0, 0

    def answer(self) -> Any:
        """Return the next answer."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, first: int, stop: int) -> None:
        """Score a range of ids, and add the result to the totals."""
        assert self.process.stdin
        print(json.dumps([first, stop]), file=self.process.stdin, flush=True)
        seconds, total, count, self.peak = self.answer()
        self.seconds, self.total, self.count = (
            self.seconds + seconds,
            self.total + total,
            self.count + count,
        )


def main() -> int:
    """Run the comparison, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("folder", help="checkpoint with its vocabulary")
    add("file", type=Path, help="text to score, in UTF-8")
    add("--tokens", type=int, default=20_000, help="tokens to score (default: %(default)s)")
    add("--windows", type=int, default=4, help="windows per turn (default: %(default)s)")
    add("--threads", type=int, default=2, help="threads of each engine (default: %(default)s)")
    args = parser.parse_args()
    from gpt2np import Tokenizer

    text = args.file.read_bytes().decode()[: 8 * args.tokens]
    ids = Tokenizer.load(args.folder).encode(text, disallowed_special=())[: args.tokens]
    file = Path(f"{args.file.stem}.{os.getpid()}.npy")
    np.save(file, np.array(ids, np.int64))
    try:
        workers = {name: Worker(name, args.folder, file, args.threads) for name in ENGINES}
    finally:
        file.unlink()
    part = args.windows * workers["gpt2np"].context
    for turn, first in enumerate(range(0, len(ids), part)):
        order = list(workers.values())[:: 1 if turn % 2 == 0 else -1]
        for worker in order:
            worker.ask(first, min(first + part, len(ids)))
    print(f"{len(ids):,} tokens of {args.file.name}, {args.threads} threads\n")
    print("| | tokens/s | seconds | peak memory, MB | perplexity |\n|---|---|---|---|---|")
    for name, worker in workers.items():
        worker.process.kill()
        perplexity = math.exp(-worker.total / worker.count)
        cells = (f"{len(ids) / worker.seconds:.0f}", f"{worker.seconds:.1f}")
        print(f"| {name} | {' | '.join(cells)} | {worker.peak / 1e6:.0f} | {perplexity:.7g} |")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
