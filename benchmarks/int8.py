"""Compare 8-bit weights (`--weights int8`) with float32: quality, memory and speed.

    pip install llama-cpp-python gguf
    python benchmarks/int8.py quality ../shared/data/stories/valid.txt
    python benchmarks/int8.py memory small medium large xl
    python benchmarks/int8.py speed small large xl

Quality compares forms of one model with the float32 form, on the same tokens: int8, the checkpoint
rounded to float16 or bfloat16, and llama.cpp with float32 and q8_0 weights. Memory and speed are
those of random checkpoints in GPT-2's shapes. For the speed, float32 and int8 take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import SHAPES, in_new_process, markdown, print_header
from numpy.typing import NDArray
from tqdm import tqdm

from gpt2np import GPT2, GPT2Config, LanguageModel
from gpt2np.benchmark.machine import peak_memory, time_runs
from gpt2np.checkpoint.config import weight_shapes
from gpt2np.checkpoint.convert import convert
from gpt2np.checkpoint.load import read_checkpoint
from gpt2np.checkpoint.safetensors_file import CHUNK_SIZE, DTYPES, write_safetensors

Array = NDArray[Any]
Logits = Callable[[list[int]], Array]

WEIGHTS: tuple[Any, ...] = (None, "int8")
WORK = {"decode": (1, 1, 64), "batch of 16": (16, 1, 64), "prompt of 512": (1, 512, 0)}
"""Name → number of sequences, new tokens of each, and tokens in each KV cache."""


def log_softmax(logits: Array) -> Array:
    """Return log probabilities in float64."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def gpt2np_forms(folder: Path, temporary: Path) -> dict[str, Logits]:
    """Return the logits functions of a model folder's forms by name; float32 comes first."""
    forms = {"float32": folder, "int8": folder}
    for dtype in ("float16", "bfloat16"):
        convert(read_checkpoint(folder), temporary / dtype, dtype=dtype)
        forms[dtype] = temporary / dtype

    def logits(model: GPT2, ids: list[int]) -> Array:
        return model.forward([ids])

    return {
        name: partial(logits, GPT2.from_folder(path, weights="int8" if name == "int8" else None))
        for name, path in forms.items()
    }


def llama_forms(folder: Path, temporary: Path) -> dict[str, Logits]:
    """Return the logits functions of llama.cpp's float32 and q8_0 forms of a model folder."""
    import llama_cpp
    from compare_engines import LlamaCppFloat32
    from compare_models import make_gguf

    files = [temporary / name / "model.gguf" for name in ("float32", "q8_0")]
    for file in files:
        file.parent.mkdir()
    make_gguf(folder, files[0])
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    names = [bytes(file) for file in files]
    if llama_cpp.llama_model_quantize(*names, options):
        raise SystemExit("llama.cpp can't quantize the model")
    engines = {f"llama.cpp, {f.parent.name}": LlamaCppFloat32(f.parent, 2) for f in files}

    def logits(engine: LlamaCppFloat32, ids: list[int]) -> Array:
        engine.begin(1)
        rows: Array = engine.feed([ids], range(len(ids)))[0]
        return rows

    return {name: partial(logits, engine) for name, engine in engines.items()}


def compare(forms: Mapping[str, Logits], windows: Sequence[list[int]]) -> dict[str, Array]:
    """Compare forms with the first form, on all tokens of the windows but the first of each.

    Returns the means per token by form: nats, KL divergence from the first form, top-1 agreement.
    """
    sums = {name: np.zeros(3) for name in forms}
    for window in tqdm(windows, desc="windows", disable=None):
        targets = np.array(window[1:])[:, None]
        reference = None
        for name, logits in forms.items():
            log_p = log_softmax(logits(window[:-1]))
            reference = log_p if reference is None else reference
            sums[name] += (
                -np.take_along_axis(log_p, targets, -1).sum(),
                (np.exp(reference) * (reference - log_p)).sum(),
                (log_p.argmax(-1) == reference.argmax(-1)).sum(),
            )
    n_tokens = sum(len(window) - 1 for window in windows)
    return {name: total / n_tokens for name, total in sums.items()}


def print_quality(text: Path, model: str, n_tokens: int) -> None:
    """Print the comparison on the first tokens of the stories in a file."""
    lm = LanguageModel.load(model)
    assert lm.folder is not None and lm.bos_token_id is not None
    end, context = lm.bos_token_id, lm.model.config.n_positions
    stories = text.read_text(encoding="utf-8").split("<|endoftext|>")
    ids = [i for story in stories for i in [end, *lm.tokenizer.encode(story.strip("\n"))]]
    ids = ids[: n_tokens + 1]
    windows = [ids[start : start + context + 1] for start in range(0, len(ids) - 1, context)]
    characters = len(lm.tokenizer.decode([i for i in ids if i != end]))
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        forms = {**gpt2np_forms(lm.folder, temporary / "a"), **llama_forms(lm.folder, temporary)}
        results = compare(forms, windows)
    print(f"{lm.name}: {len(ids) - 1:,} tokens, {characters:,} characters", end="\n\n")
    print_header("form", "perplexity", "bits per character", "KL divergence, nats", "same best")
    for name, (nats, divergence, agreement) in results.items():
        bits = nats * (len(ids) - 1) / math.log(2) / characters
        cells = f"{math.exp(nats):.3f}", f"{bits:.5f}", f"{divergence:.2e}", f"{agreement:.2%}"
        print(markdown(name, *cells))


@contextmanager
def random_checkpoint(shape: str, dtype: str) -> Iterator[tuple[Path, GPT2Config]]:
    """Write a random checkpoint in one of GPT-2's shapes. Yields the folder and the config."""
    n_layer, n_head, n_embd = SHAPES[shape]
    config = GPT2Config(n_layer=n_layer, n_head=n_head, n_embd=n_embd)
    sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd}
    rng = np.random.default_rng(0)

    def values(size: int, mean: float) -> Iterator[Array]:
        for start in range(0, size, CHUNK_SIZE):
            chunk = rng.standard_normal(min(CHUNK_SIZE, size - start), np.float32)
            yield chunk * np.float32(0.02) + np.float32(mean)

    tensors = {
        name: (size, values(math.prod(size), 1 if ".ln_" in f".{name}" else 0))
        for name, size in weight_shapes(config).items()
    }
    with tempfile.TemporaryDirectory(prefix="gpt2np-int8-") as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
        write_safetensors(folder / "model.safetensors", DTYPES[dtype], tensors)
        yield folder, config


def measure_peaks(folder: Path, weights: Any) -> tuple[int, int, int]:
    """Load a model and continue a prompt of 64 tokens by 32.

    Returns the bytes of the weights, and the peak resident bytes after loading and packing, and at
    the end, with the workers.
    """
    model = GPT2.from_folder(folder, weights=weights)
    loaded = peak_memory()
    model.processes = "auto"
    cache, ids = model.new_cache(), list(range(64))
    for _ in range(32):
        logits = model.forward([ids], [cache], logits_indices=[len(ids) - 1])
        ids = [int(logits[0].argmax())]
    used = peak_memory()
    assert loaded and used
    return model.weights.nbytes, loaded, used


def print_memory(shapes: Sequence[str], dtype: str) -> None:
    """Print the peaks of each shape and form."""
    print(f"{dtype} checkpoints", end="\n\n")
    print_header("shape", "weights", "size, MB", "÷ float32", "peak of loading, MB", "of use, MB")
    for shape in shapes:
        with random_checkpoint(shape, dtype) as (folder, config):
            float32 = 4 * sum(map(math.prod, weight_shapes(config).values()))
            for form in WEIGHTS:
                command = "peaks", str(folder), *filter(None, [form])
                size, loaded, used = in_new_process(__file__, *command)
                sizes = [f"{nbytes / 1e6:,.0f}" for nbytes in (size, loaded, used)]
                sizes.insert(1, f"{size / float32:.3f}")
                print(markdown(shape, form or "float32", *sizes), flush=True)


def work_of(model: GPT2, sequences: int, tokens: int, context: int) -> Callable[[], object]:
    """Return a function that computes new tokens after a context, then truncates the caches."""
    caches = [model.new_cache() for _ in range(sequences)]
    if context:
        model.forward([list(range(context))] * sequences, caches)
    new = [list(range(tokens))] * sequences
    indices = [tokens - 1 + i * tokens for i in range(sequences)]

    def work() -> None:
        model.forward(new, caches, logits_indices=indices)
        for cache in caches:
            cache.truncate(context)

    time_runs(work, 1.0)  # the model chooses the number of processes
    return work


def print_speed(shapes: Sequence[str], processes: Any, rounds: int, seconds: float) -> None:
    """Print the tokens per second of both forms, and the median of the ratios of each round."""
    print(f"processes: {processes}; {rounds} rounds", end="\n\n")
    print_header("shape", "work", "float32, tokens/s", "int8, tokens/s", "int8 ÷ float32 (range)")
    for shape in shapes:
        with random_checkpoint(shape, "float32") as (folder, _):
            models = [GPT2.from_folder(folder, weights=weights) for weights in WEIGHTS]
            for model in models:
                model.processes = processes
            for name, (sequences, tokens, context) in WORK.items():
                works = [work_of(model, sequences, tokens, context) for model in models]
                turns = []
                for _ in range(rounds):
                    for work in works:
                        turns.append(median(time_runs(work, seconds)))
                float32, int8 = (sequences * tokens / median(turns[i::2]) for i in (0, 1))
                ratios = sorted(a / b for a, b in zip(turns[::2], turns[1::2], strict=True))
                spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                row = markdown(shape, name, f"{float32:.1f}", f"{int8:.1f}", spread)
                print(row, flush=True)


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    quality = commands.add_parser("quality", help="perplexity and KL divergence of each form")
    quality.add_argument("text", type=Path, help="stories between <|endoftext|>")
    quality.add_argument("--model", default="bundled", help="default: bundled")
    quality.add_argument("--tokens", type=int, default=20_000, help="default: 20000")
    memory = commands.add_parser("memory", help="peak memory of loading and use")
    memory.add_argument("shapes", nargs="+", choices=SHAPES)
    memory.add_argument("--dtype", choices=DTYPES, default="float32", help="of the checkpoints")
    speed = commands.add_parser("speed", help="decoding, batches and prompts, in turns")
    speed.add_argument("shapes", nargs="+", choices=SHAPES)
    speed.add_argument("--processes", default="auto", help="default: auto")
    speed.add_argument("--rounds", type=int, default=7, help="default: 7")
    speed.add_argument("--seconds", type=float, default=0.5, help="of each turn (default: 0.5)")
    peaks = commands.add_parser("peaks", help="what `memory` runs in a new process")
    peaks.add_argument("folder", type=Path)
    peaks.add_argument("weights", nargs="?")
    args = parser.parse_args()
    if args.command == "quality":
        print_quality(args.text, args.model, args.tokens)
    elif args.command == "memory":
        print_memory(args.shapes, args.dtype)
    elif args.command == "speed":
        processes = args.processes if args.processes == "auto" else int(args.processes)
        print_speed(args.shapes, processes, args.rounds, args.seconds)
    else:
        print(json.dumps(measure_peaks(args.folder, args.weights)))


if __name__ == "__main__":
    main()
