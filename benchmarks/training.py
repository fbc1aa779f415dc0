"""Speed and memory of a training step, in turns with PyTorch.

    python benchmarks/training.py {bundled | small} [--steps 5] [--memory]

"bundled" is the bundled recipe (6 blocks of 256 channels, 8 x 512 tokens); "small" is GPT-2 small's
shape with 4 x 256 tokens. Each step computes loss, gradients, clipping and AdamW. PyTorch runs the
model of `transformers` with attention "sdpa", and fused AdamW. Prints the medians of seconds per
step; with --memory, the peak memory of a process that takes two steps.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpt2np import GPT2, Tokenizer
from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import IntArray
from gpt2np.training.options import TrainerOptions
from gpt2np.training.trainer import Trainer, draw_sequences, new_weights

CASES: dict[str, tuple[GPT2Config, int, int]] = {  # config, texts, tokens of each
    "bundled": (GPT2Config(4096, 512, 256, 6, 4), 8, 512),
    "small": (GPT2Config(), 4, 256),
}

Step = Callable[[], float]  # returns the loss before the step


def our_step(model: GPT2, corpus: Path, options: TrainerOptions) -> Step:
    tokenizer = Tokenizer.load("bundled")
    return Trainer(corpus, corpus.parent, tokenizer, options, model=model).take_step


def batches(corpus: Path, options: TrainerOptions) -> Iterator[IntArray]:
    """Yield the batches of our trainer: ids (texts, tokens + 1)."""
    ids, size = np.load(corpus), options.per_device_train_batch_size
    for step in count():
        yield draw_sequences(ids, size, options.block_size or 0, [options.seed, step])


def torch_step(model: GPT2, corpus: Path, options: TrainerOptions) -> Step:
    import torch
    from transformers import GPT2LMHeadModel

    folder = corpus.parent / "torch"
    model.save(folder)
    reference: Any = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    drawn = batches(corpus, options)

    def step() -> float:
        rows = torch.from_numpy(next(drawn))
        logits = reference(rows[:, :-1]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=("gpt2np", "torch"), help="time only this")
    parser.add_argument("--memory", action="store_true", help="print peak memory of two steps")
    args = parser.parse_args()
    names = [args.only] if args.only else ["gpt2np", "torch"]
    if args.memory and not args.only:
        for name in names:  # each in a process of its own
            subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        steps, tokens = make_steps(args.case, names, Path(folder))
        seconds = measure(steps, 2 if args.memory else args.steps + 1)
    for name, times in seconds.items():
        if args.memory:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{name:<8} peak memory {peak:,.0f} MiB", flush=True)
        else:
            s = median(times[1:])  # the first step warms up
            print(f"{name:<8} {s:.3f} s per step, {tokens / s:,.0f} tokens/s")


def make_steps(case: str, names: Sequence[str], folder: Path) -> tuple[dict[str, Step], int]:
    """Return the steps of each trainer, from the same weights and ids, and the tokens of a step."""
    config, texts, length = CASES[case]
    options = TrainerOptions(block_size=length, per_device_train_batch_size=texts)
    corpus = folder / "ids.npy"
    np.save(corpus, np.random.default_rng(0).integers(0, config.vocab_size, 100_000))
    model = GPT2(config, new_weights(config, 0))
    makers = {"gpt2np": our_step, "torch": torch_step}
    return {name: makers[name](model, corpus, options) for name in names}, texts * length


def measure(steps: Mapping[str, Step], turns: int) -> dict[str, list[float]]:
    """Take steps in turns; return the seconds. The first losses must agree."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns):
        losses = []
        for name, step in steps.items():
            start = time.perf_counter()
            losses.append(step())
            seconds[name].append(time.perf_counter() - start)
            print(f"turn {turn}, {name}: {seconds[name][-1]:.3f} s", file=sys.stderr, flush=True)
        if not turn:
            assert max(losses) - min(losses) < 1e-3, losses
    return seconds


if __name__ == "__main__":
    main()
