"""Speed and memory of a training step, in turns with PyTorch.

    python benchmarks/training.py [bundled | small] [--steps 5]

"bundled" is the bundled recipe (6 blocks of 256 channels, 8 x 512 tokens); "small" is GPT-2 small's
shape with 4 x 256 tokens. Each step computes loss, gradients, clipping and AdamW. PyTorch runs the
model of `transformers` with attention "sdpa", and fused AdamW. Prints the median of seconds per
step, and the peak memory of a process with one of the two (--only).
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpt2np import GPT2, Tokenizer
from gpt2np.checkpoint.config import GPT2Config
from gpt2np.training.options import TrainerOptions
from gpt2np.training.trainer import Trainer, draw_sequences, new_weights

CASES: dict[str, tuple[GPT2Config, int, int]] = {  # config, texts, tokens of each
    "bundled": (GPT2Config(4096, 512, 256, 6, 4), 8, 512),
    "small": (GPT2Config(), 4, 256),
}


def our_step(model: GPT2, ids: Path, options: TrainerOptions) -> Callable[[], float]:
    folder = Path(tempfile.mkdtemp())
    return Trainer(ids, folder / "m", Tokenizer.load("weights"), options, model=model).take_step


def torch_step(model: GPT2, ids: Path, options: TrainerOptions) -> Callable[[], float]:
    import torch

    from gpt2np.interp.compare import transformers_model

    reference: Any = transformers_model(model)
    reference.set_attn_implementation("sdpa")
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    corpus, length = np.load(ids), options.block_size or 0

    def step() -> float:
        drawn = draw_sequences(corpus, options.per_device_train_batch_size, length, [0, 0])
        rows = torch.from_numpy(drawn)
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
    parser.add_argument("--only", choices=("gpt2np", "torch"))
    args = parser.parse_args()
    config, texts, length = CASES[args.case]
    options = TrainerOptions(block_size=length, per_device_train_batch_size=texts)
    ids = Path(tempfile.mkdtemp()) / "ids.npy"
    np.save(ids, np.random.default_rng(0).integers(0, config.vocab_size, 100_000))
    model = GPT2(config, new_weights(config, 0))
    makers = {"gpt2np": our_step, "torch": torch_step}
    steps = {
        name: make(model, ids, options)
        for name, make in makers.items()
        if args.only in (None, name)
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.steps + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn:  # the first step warms up
                seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        speed = texts * length / median(times)
        print(f"{name:<8} {median(times):.3f} s per step, {speed:,.0f} tokens/s")
    if args.only:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
