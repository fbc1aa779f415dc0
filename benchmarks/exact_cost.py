"""Cost of the exact pass beside float32: time, where it goes, and memory.

    python benchmarks/exact_cost.py [--layers 12] [--repeats 5]
    OPENBLAS_NUM_THREADS=1 python benchmarks/exact_cost.py --layers 6

Random weights in GPT-2 small's shape. Float32 and exact take turns; the times are medians. The
profile runs the exact pass on one thread of Python. Memory is the peak of a process that loads the
model and computes the prompt and one token.
"""

import argparse
import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from record_bits import random_ids, random_model

from gpt2np import GPT2
from gpt2np.benchmark.process import peak_memory
from gpt2np.kernels.threads import inline

CONTEXT, PROMPT = 64, 256
KINDS = {  # functions of a profile by what they do; the remaining functions are "other"
    "products": ("_multiply", "matmul"),
    "float32 slices → float64": ("astype",),
    "cutting inputs": ("cut", "rint", "frexp", "ldexp"),
    "exp, tanh, sums": ("exp", "tanh", "row_sums", "_reduce", "_power_of_two", "on_chunks"),
}


def models(layers: int) -> dict[str, GPT2]:
    model = random_model(vocab_size=50257, n_embd=768, n_head=12, n_layer=layers)
    exact = GPT2(model.config, dict(model.weights), exact=True)
    return {"float32": model, "exact": exact}


def passes(model: GPT2) -> dict[str, Callable[[], object]]:
    """The measured passes: a prompt, one token, and one token of each of 8 texts."""
    prompt, ids = random_ids(PROMPT, 2), random_ids(CONTEXT, 1)
    cache, *caches = [model.new_cache() for _ in range(9)]
    for filled in (cache, *caches):
        model.forward([ids], [filled], logits_indices=[CONTEXT - 1])
    return {
        f"prompt of {PROMPT}": lambda: model.forward([prompt], logits_indices=[PROMPT - 1]),
        "one token": lambda: model.forward([[7]], [cache]),
        "batch of 8": lambda: model.forward([[7]] * 8, caches),
    }


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(layers: int, repeats: int) -> None:
    """Print the times of each pass, and where the exact pass spends its time."""
    fast, exact = map(passes, models(layers).values())
    print(f"{layers} blocks of GPT-2 small\n{'':16}{'float32':>10}{'exact':>10}{'ratio':>8}")
    for name in fast:
        turns = [(seconds(fast[name]), seconds(exact[name])) for _ in range(repeats + 1)][1:]
        a, b = (median(times) for times in zip(*turns, strict=True))
        print(f"{name:16}{a * 1e3:8.1f}ms{b * 1e3:8.1f}ms{b / a:8.2f}")
    for name, function in exact.items():
        print(f"{name}: {shares(function)}")


def shares(function: Callable[[], object]) -> str:
    """Return the shares of one pass by kind of function, largest first."""
    profile = cProfile.Profile()
    with inline():
        profile.runcall(function)
    spent = dict.fromkeys([*KINDS, "other"], 0.0)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (_, _, function_name), (_, _, own, _, _) in stats.items():
        words = function_name.replace("'", " ").replace(">", " ").replace(".", " ").split()
        kind = next((kind for kind, names in KINDS.items() if {*names} & {*words}), "other")
        spent[kind] += own
    total = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {share / total:.0%}" for kind, share in ordered)


def memory(kind: str, layers: int) -> None:
    """Print the peak memory of this process after a prompt and one token."""
    model = random_model(vocab_size=50257, n_embd=768, n_head=12, n_layer=layers)
    if kind == "exact":
        model = GPT2(model.config, dict(model.weights), exact=True)
    for function in passes(model).values():
        function()
    print(f"peak memory, {kind}: {(peak_memory() or 0) / 2**20:,.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", choices=("float32", "exact"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        memory(args.memory, args.layers)
        return
    compare(args.layers, args.repeats)
    for kind in ("float32", "exact"):
        command = [sys.executable, __file__, "--memory", kind, "--layers", str(args.layers)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
