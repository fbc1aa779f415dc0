"""Record the bits of the forward pass and the generated ids.

Run it before and after a change that must not change a result:

    python benchmarks/record_bits.py before.json
    OPENBLAS_CORETYPE=Haswell python benchmarks/record_bits.py before-haswell.json
    …
    python benchmarks/record_bits.py after.json
    diff before.json after.json   # one line per case

A recording holds one SHA-256 per case: of the logits' bytes, of every hooked array, or of the
generated ids. Two recordings are comparable only on the same processor and NumPy version.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np import GPT2, GPT2Config, LanguageModel
from gpt2np.checkpoint.config import weight_shapes
from gpt2np.generation.options import Options
from gpt2np.model import last_token_indices

Array = np.ndarray[Any, Any]

BUNDLED = Path(__file__).parent.parent / "weights"

SHAPES: dict[str, dict[str, Any]] = {
    "one channel per head": {"n_embd": 6, "n_head": 6, "n_layer": 2, "n_inner": 5},
    "odd heads": {"n_embd": 55, "n_head": 5, "n_layer": 3, "n_inner": 130},
    "wide heads": {"n_embd": 260, "n_head": 2, "n_layer": 2, "n_inner": 700},
    "erf GELU": {"n_embd": 96, "n_head": 4, "n_layer": 4, "activation_function": "gelu"},
    "ReLU": {"n_embd": 80, "n_head": 5, "n_layer": 2, "activation_function": "relu"},
    "SiLU": {"n_embd": 72, "n_head": 3, "n_layer": 2, "activation_function": "silu"},
    "inverse layer scale": {
        "n_embd": 64, "n_head": 4, "n_layer": 5, "scale_attn_by_inverse_layer_idx": True,
        "layer_norm_epsilon": 1e-3,
    },
    "no scale": {"n_embd": 48, "n_head": 3, "n_layer": 2, "scale_attn_weights": False},
    "XL's width": {"n_embd": 1600, "n_head": 25, "n_layer": 1},
    "untied, prime": {"n_embd": 797, "n_head": 1, "n_layer": 1, "n_inner": 1009, "untied": True},
}  # fmt: skip


def random_model(vocab_size: int = 1031, untied: bool = False, **shape: Any) -> GPT2:
    """A GPT-2 with seeded random float32 weights."""
    config = GPT2Config(vocab_size=vocab_size, n_positions=1100, **shape)
    rng = np.random.default_rng(0)
    shapes = weight_shapes(config)
    if untied:
        shapes["lm_head.weight"] = shapes["wte.weight"]
    weights = {
        name: rng.standard_normal(size, np.float32) * np.float32(0.05) + (".ln_" in name)
        for name, size in shapes.items()
    }
    return GPT2(config, {name: array.astype(np.float32) for name, array in weights.items()})


def random_ids(n: int, seed: int, vocab_size: int = 1031) -> list[int]:
    """n random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocab_size, n).tolist()
    return ids


def prompts(model: GPT2, lengths: list[int]) -> Iterator[Array]:
    """Logits of all tokens of one prompt per length, without a cache."""
    for n in lengths:
        yield model.forward([random_ids(n, n)])


def random_parts(model: GPT2, n: int, cuts: int) -> Iterator[Array]:
    """One text through a cache in random parts."""
    rng = np.random.default_rng(n)
    places = np.sort(rng.choice(np.arange(1, n), cuts, replace=False))
    cache = model.new_cache()
    for part in np.split(np.array(random_ids(n, 7)), places):
        yield model.forward([part], [cache])


def batch(model: GPT2, size: int, steps: int = 3) -> Iterator[Array]:
    """Prompts of many lengths together, then a token each."""
    rng = np.random.default_rng(size)
    texts = [random_ids(int(n), size + int(n)) for n in rng.integers(1, 90, size)]
    caches = [model.new_cache() for _ in texts]
    yield model.forward(texts, caches, logits_indices=last_token_indices(texts))
    for step in range(steps):
        yield model.forward([[(step * 17 + row) % 1031] for row in range(size)], caches)


def drafts(model: GPT2, rows: int) -> Iterator[Array]:
    """Draft tokens after a prompt, some of them rejected."""
    cache = model.new_cache()
    yield model.forward([random_ids(20, 1)], [cache], logits_indices=[19])
    for step in range(5):
        yield model.forward([random_ids(rows, step)], [cache])
        cache.truncate(cache.length - rows // 2)


def hooked(model: GPT2) -> Iterator[Array]:
    """Every array that a hook sees, in order, and logits after edits by a hook."""
    seen: list[Array] = []

    def keep(name: str, array: Array) -> Array:
        seen.append(np.frombuffer(name.encode(), np.uint8))
        seen.append(array.copy())
        return array

    def edit(name: str, array: Array) -> Array:
        return array * np.float32(0.5) if name.endswith(("attn.z", "mlp.act", "attn.k")) else array

    cache = model.new_cache()
    texts, caches = [random_ids(30, 2), random_ids(1, 3)], [cache, model.new_cache()]
    yield model.forward(texts, caches, hook=keep, logits_indices=[0, 29, 30])
    yield model.forward([[5]], [cache], hook=keep)
    yield from seen
    yield model.forward([random_ids(70, 4)], hook=edit)


def mixed(model: GPT2) -> Iterator[Array]:
    """A little of everything, for one model."""
    yield from prompts(model, [1, 2, 3, 17, 64, 65, 200])
    yield from random_parts(model, 300, 6)
    yield from batch(model, 5)
    yield from drafts(model, 8)
    cache = model.new_cache()
    long = random_ids(min(600, model.config.n_positions - 1), 5)
    yield model.forward([long], [cache], logits_indices=[len(long) - 1, 0, 3])
    copy = cache.copy()
    yield model.forward([[1], [2]], [cache, copy])


def completions(ranks: int = 1) -> Iterator[Array]:
    """Ids that the bundled model generates, by every kind of decoding."""
    lm = LanguageModel.load(BUNDLED)
    if ranks > 1:
        with_processes(lm.model, ranks)
    story = "Once upon a time there was a little dog. The little dog"
    decodings: list[Options] = [
        {"temperature": 0.0},
        {"seed": 3},
        {"seed": 4, "temperature": 1.0, "top_k": 0, "top_p": 0.9},
        {"seed": 5},
        {"seed": 6, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"num_beams": 4},
        {"regex": "[a-z ]+\\.", "seed": 7},
    ]
    for options in decodings:
        options["max_new_tokens"] = 60
        done = lm.generate(story, **options)
        yield np.array(done.ids)
    many = lm.generate_batch([story[:n] for n in range(10, 40, 2)], max_new_tokens=30, seed=1)
    for completion in many:
        yield np.array(completion.ids)
    yield np.array(lm.generate("One day", max_new_tokens=400, seed=8, logprobs=2).ids)


def with_processes(model: GPT2, processes: int) -> GPT2:
    """The same model on so many ranks, also beyond the number of CPUs."""
    model.forward([[1]])  # a first short pass never uses ranks
    model.processes = processes
    assert model.processes == processes
    return model


def cases() -> Iterator[tuple[str, Callable[[], Iterator[Array]]]]:
    """Yield the name of each case, and the function that computes its arrays."""
    for name, shape in SHAPES.items():
        yield f"{name}: mixed", partial(_on_random_model, mixed, shape)
        yield f"{name}: hooked", partial(_on_random_model, hooked, shape)
    for name in ("odd heads", "wide heads", "erf GELU", "untied, prime"):
        for ranks in (2, 3):
            yield f"{name}: {ranks} ranks", partial(_on_ranks, random_model(**SHAPES[name]), ranks)
    yield "bundled: mixed", lambda: mixed(LanguageModel.load(BUNDLED).model)
    yield "bundled: hooked", lambda: hooked(LanguageModel.load(BUNDLED).model)
    yield "bundled: prompts", lambda: prompts(LanguageModel.load(BUNDLED).model, [5, 100, 128])
    yield "bundled: completions", completions
    yield "bundled: completions, 2 ranks", partial(completions, 2)
    small = random_model(50257, n_embd=768, n_head=12, n_layer=12)
    yield "124M: the first passes", partial(prompts, small, [3, 5])
    yield "124M: prompts", partial(prompts, small, [1, 2, 7, 64, 300, 1000])
    yield "124M: random parts", partial(random_parts, small, 700, 9)
    for size in (2, 3, 4, 8, 13, 16, 20):
        yield f"124M: batch of {size}", partial(batch, small, size)
    yield "124M: drafts", partial(drafts, small, 9)
    yield "124M: hooked", partial(hooked, small)
    for ranks in (2, 3):
        yield f"124M: {ranks} ranks", partial(_on_ranks, small, ranks)
    yield "124M: batch of 16, 3 ranks", partial(batch, small, 16)


def _on_random_model(
    compute: Callable[[GPT2], Iterator[Array]], shape: dict[str, Any]
) -> Iterator[Array]:
    return compute(random_model(**shape))


def _on_ranks(model: GPT2, ranks: int) -> Iterator[Array]:
    return mixed(with_processes(model, ranks))


def digest(arrays: Iterator[Array]) -> str:
    """SHA-256 of the shapes, dtypes and bytes of some arrays, in their order."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.shape} {array.dtype}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def main() -> None:
    """Write the digest of every case to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("path", type=Path, help="JSON file to write")
    path, found = parser.parse_args().path, {}
    for name, compute in cases():
        found[name] = digest(compute())
        print(f"{found[name][:16]}  {name}", file=sys.stderr)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
