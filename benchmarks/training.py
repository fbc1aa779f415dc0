"""Speed and memory of a training step, in turns with PyTorch and llm.c.

    python benchmarks/training.py {bundled | small} [--steps 5] [--llmc FOLDER] [--memory]

"bundled" is the bundled recipe (6 blocks of 256 channels, 8 x 512 tokens); "small" is GPT-2 small's
shape with 4 x 256 tokens. Each step computes loss, gradients, clipping and AdamW. PyTorch runs the
model of `transformers` with attention "sdpa", and fused AdamW. llm.c is a checkout of
github.com/karpathy/llm.c, whose train_gpt2.c is compiled here; it does not clip. Prints the medians
of seconds per step; with --memory, the peak memory of a process that takes two steps.
"""

import argparse
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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

DRIVER = r"""
#define TESTING
#include "train_gpt2.c"
int main(int argc, char** argv) {
    int B = atoi(argv[2]), T = atoi(argv[3]), *ids = malloc(2 * B * T * sizeof(int));
    freopen("/dev/null", "w", stdout);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    for (int step = 1; fread(ids, sizeof(int), 2 * B * T, stdin) == 2 * B * T; step++) {
        gpt2_forward(&model, ids, ids + B * T, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.1f, step);
        fprintf(stderr, "%f\n", model.mean_loss);
    }
}
"""
LAYER = (
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
    "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
    "mlp.c_proj.weight", "mlp.c_proj.bias",
)  # fmt: skip

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


def llmc_step(model: GPT2, corpus: Path, options: TrainerOptions, checkout: Path) -> Step:
    folder, config = corpus.parent, model.config
    source, program, checkpoint = (folder / name for name in ("driver.c", "llmc", "model.bin"))
    source.write_text(DRIVER)
    flags = ["-O3", "-Ofast", "-fno-finite-math-only", "-march=native", "-fopenmp", "-w"]
    compiler = ["gcc", *flags, f"-I{checkout}", str(source), "-o", str(program), "-lm"]
    subprocess.run(compiler, check=True)
    write_llmc(model, checkpoint)
    shape = [str(options.per_device_train_batch_size), str(options.block_size)]
    child = subprocess.Popen(
        [program, checkpoint, *shape], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin and child.stderr
    to_child, from_child, drawn = child.stdin, child.stderr, batches(corpus, options)
    assert config.n_inner == 4 * config.n_embd

    def step() -> float:
        rows = next(drawn).astype(np.int32)
        to_child.write(rows[:, :-1].tobytes() + rows[:, 1:].tobytes())
        to_child.flush()
        return float(from_child.readline())

    return step


def write_llmc(model: GPT2, path: Path) -> None:
    """Write a checkpoint of llm.c: version 3, float32, matrices [out, in], a padded vocabulary."""
    config, weights = model.config, model.weights
    padded = -(-config.vocab_size // 128) * 128
    header = (20240326, 3, config.n_positions, config.vocab_size, config.n_layer, config.n_head)
    with path.open("wb") as file:
        file.write(struct.pack("<8i", *header, config.n_embd, padded).ljust(1024, b"\0"))
        wte = np.zeros((padded, config.n_embd), np.float32)
        wte[: config.vocab_size] = weights["wte.weight"]
        wte.tofile(file)
        weights["wpe.weight"].tofile(file)
        for name in LAYER:
            for i in range(config.n_layer):
                np.ascontiguousarray(weights[f"h.{i}.{name}"].T).tofile(file)
        weights["ln_f.weight"].tofile(file)
        weights["ln_f.bias"].tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--llmc", type=Path, metavar="FOLDER", help="checkout of llm.c")
    parser.add_argument("--only", choices=("gpt2np", "torch", "llm.c"), help="time only this")
    parser.add_argument("--memory", action="store_true", help="print peak memory of two steps")
    args = parser.parse_args()
    names = [args.only] if args.only else ["gpt2np", "torch", *(["llm.c"] if args.llmc else [])]
    if args.memory and not args.only:
        for name in names:  # each in a process of its own
            subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        steps, tokens = make_steps(args.case, names, args.llmc, Path(folder))
        seconds = measure(steps, 2 if args.memory else args.steps + 1)
    for name, times in seconds.items():
        if args.memory:
            print(f"{name:<8} peak memory {peak_mebibytes(name):,.0f} MiB", flush=True)
        else:
            s = median(times[1:])  # the first step warms up
            print(f"{name:<8} {s:.3f} s per step, {tokens / s:,.0f} tokens/s")


def make_steps(
    case: str, names: Sequence[str], checkout: Path, folder: Path
) -> tuple[dict[str, Step], int]:
    """Return the steps of each trainer, from the same weights and ids, and the tokens of a step."""
    config, texts, length = CASES[case]
    options = TrainerOptions(block_size=length, per_device_train_batch_size=texts)
    corpus = folder / "ids.npy"
    np.save(corpus, np.random.default_rng(0).integers(0, config.vocab_size, 100_000))
    model = GPT2(config, new_weights(config, 0))
    makers: dict[str, Callable[[GPT2, Path, TrainerOptions], Step]] = {
        "gpt2np": our_step,
        "torch": torch_step,
        "llm.c": partial(llmc_step, checkout=checkout),
    }
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


def peak_mebibytes(name: str) -> float:
    """Return the peak memory of this process, or of llm.c's, which still runs."""
    if name != "llm.c":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    [child] = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    status = Path(f"/proc/{child}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
