"""Time to the first token of a new process, with and without the unpacked first pass.

    python benchmarks/first_token.py [--layers 12] [--width 768] [--rounds 5]

A short first pass reads the memory-mapped file, and the second pass packs the weights; see
gpt2np/runtime/packed_weights.py. "packed" packs before the first pass. Each measurement has a
process of its own, which loads a model with random weights and computes 5 tokens, then 1. The file
is in the page cache ("warm"), or was dropped from it ("cold").
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from gpt2np import GPT2, GPT2Config
from gpt2np.checkpoint.names import weight_shapes


def write_model(folder: Path, width: int, layers: int) -> None:
    """Write a GPT-2 with random weights; heads have 64 channels."""
    config = GPT2Config(n_embd=width, n_head=width // 64, n_layer=layers)
    rng = np.random.default_rng(0)
    shapes = weight_shapes(config).items()
    weights = {name: rng.standard_normal(size, np.float32) / 50 for name, size in shapes}
    GPT2(config, weights).save(folder)
    os.sync()


def measure(folder: Path, *, packed: bool) -> tuple[float, float]:
    """Return the seconds from loading to the first token, and to the second token after it."""
    start = time.perf_counter()
    model = GPT2.from_folder(folder)
    if packed:
        model.weights.for_pass(short=False)
    cache = model.new_cache()
    model.forward([[1, 2, 3, 4, 5]], [cache], logits_indices=[4])
    first = time.perf_counter()
    model.forward([[6]], [cache])
    return first - start, time.perf_counter() - first


def set_page_cache(file: Path, *, warm: bool) -> None:
    """Read a file into the page cache, or drop it from there."""
    with file.open("rb") as stream:
        if warm:
            while stream.read(1 << 24):
                pass
        else:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=int, default=12, help="number of blocks (default: 12)")
    parser.add_argument("--width", type=int, default=768, help="channels (default: 768)")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (default: 5)")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "MODE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        folder, mode = args.measure
        print(*measure(Path(folder), packed=mode == "packed"))
        return 0
    print("| page cache | first pass | first token, ms | second token, ms |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_model(folder, args.width, args.layers)
        for cache in ("warm", "cold"):
            times: dict[str, list[list[float]]] = {"unpacked": [], "packed": []}
            for _ in range(args.rounds):
                for mode, measured in times.items():
                    set_page_cache(folder / "model.safetensors", warm=cache == "warm")
                    run = [sys.executable, __file__, "--measure", str(folder), mode]
                    output = subprocess.run(run, check=True, capture_output=True, text=True).stdout
                    measured.append([float(seconds) for seconds in output.split()])
            for mode, measured in times.items():
                first, second = (1000 * median(column) for column in zip(*measured, strict=True))
                print(f"| {cache} | {mode} | {first:.0f} | {second:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
