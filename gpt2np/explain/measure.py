"""Measurements for the explain page: time and operations, the KV cache, float32 precision.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import numpy as np

from gpt2np.benchmark.counts import decode_flops, hook_point_flops, prefill_flops
from gpt2np.benchmark.machine import time_runs
from gpt2np.explain.run import Run
from gpt2np.interp import trace
from gpt2np.interp.description import Json
from gpt2np.interp.lens import top_k
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache, last_token_indices
from gpt2np.model.ops import softmax
from gpt2np.runtime.kv_cache import cache_nbytes

PASS_PARTS = {
    "embed": "token and position embedding",
    "ln_1": "layer norm before attention",
    "attn.q": "queries, keys and values",
    "attn.pattern": "scores and softmax",
    "attn.z": "weighted sum of values",
    "attn.out": "attention’s output projection",
    "resid_mid": "added to the residual stream",
    "ln_2": "layer norm before the MLP",
    "mlp.pre": "MLP, first matrix",
    "mlp.act": "activation function",
    "mlp.out": "MLP, second matrix",
    "resid": "added to the residual stream",
    "ln_f": "last layer norm",
    "logits": "unembedding",
}
"""Parts of a pass, by the hook point at the end of the part, without "blocks.i."."""

_SAME_PART = {"attn.k": "attn.q", "attn.v": "attn.q"}  # one matmul computes q, k and v
_N_PASSES = 5
_N_ALTERNATIVES = 5


def measure_parts(run: Run) -> Json:
    """Measure the parts of a forward pass over the tokens of the page, and count operations."""
    flops = hook_point_flops(run.config, len(run.ids))
    seconds = seconds_per_part(run.model, run.ids, _N_PASSES)
    whole = min(time_runs(lambda: run.model.forward([run.ids]), 0.0))
    parts = [
        {"point": point, "name": name, "seconds": seconds[point], "flops": flops.get(point, 0)}
        for point, name in PASS_PARTS.items()
    ]
    return {"passes": _N_PASSES, "seconds": whole, "parts": parts}


def seconds_per_part(model: GPT2, ids: list[int], passes: int) -> dict[str, float]:
    """Measure the seconds of each part of a forward pass, summed over all blocks.

    Returns medians over `passes` passes after a warm-up pass, for each hook point in PASS_PARTS.
    A hook takes the times; the time of the hook is excluded.
    """
    runs = [_time_pass(model, ids) for _ in range(passes + 1)][1:]
    return {part: median(run[part] for run in runs) for part in PASS_PARTS}


def _time_pass(model: GPT2, ids: list[int]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    last = time.perf_counter()

    def stop(name: str, array: Array) -> Array:
        nonlocal last
        part = name.split(".", 2)[2] if name.startswith("blocks.") else name
        seconds[_SAME_PART.get(part, part)] += time.perf_counter() - last
        last = time.perf_counter()
        return array

    model.forward([ids], hook=stop)
    return seconds


def measure_steps(run: Run, max_steps: int) -> Json:
    """Continue the window greedily; describe the likely tokens, and what the KV cache saves.

    Stops after `max_steps` steps, after an end-of-text token, or when the context is full.
    """
    ids, cache, config = list(run.ids), run.model.new_cache(), run.config
    logits, steps = list[Array](), list[dict[str, float]]()
    while len(steps) < max_steps and len(ids) <= config.n_positions:
        row, step = _time_step(run.model, ids, cache)
        logits.append(row)
        steps.append(step)
        ids.append(int(row.argmax()))
        if ids[-1] in run.lm.eos_token_ids:
            break
    best = top_k(np.array(logits), min(_N_ALTERNATIVES, config.vocab_size))
    probabilities = np.take_along_axis(softmax(np.array(logits, np.float64)), best, 1)
    contexts = range(len(run.ids), len(run.ids) + len(steps))
    without = [prefill_flops(config, n) for n in contexts]
    return {
        "ids": best.tolist(),
        "probabilities": probabilities.tolist(),
        "contexts": list(contexts),
        "bytes": [cache_nbytes(config, n) for n in contexts],
        "flops": [without[0], *(decode_flops(config, n) for n in contexts[1:])],
        "flops_without": without,
        **{name: [step[name] for step in steps] for name in steps[0]},
    }


def _time_step(model: GPT2, ids: list[int], cache: KVCache) -> tuple[Array, dict[str, float]]:
    """Compute the logits after `ids` with and without the KV cache; return them, and the times."""
    cached = cache.length

    def with_cache() -> Array:
        cache.truncate(cached)
        new = [ids[cached:]]
        return model.forward(new, [cache], logits_indices=last_token_indices(new))

    def without_cache() -> Array:
        return model.forward([ids], logits_indices=last_token_indices([ids]))

    seconds, seconds_without = (min(time_runs(work, 0.0)) for work in (with_cache, without_cache))
    logits: Array = with_cache()[0]
    difference = float(np.abs(logits - without_cache()[0]).max())
    return logits, {
        "seconds": seconds,
        "seconds_without": seconds_without,
        "differences": difference,
    }


def measure_precision(run: Run) -> Json:
    """Compare the pass with one in float64, which needs twice the memory of the weights."""
    weights = {name: array.astype(np.float64) for name, array in run.model.weights.items()}
    double = GPT2(run.config, weights)
    exact = trace(double, run.ids, ["embed", "blocks.*.resid", "logits"])
    logits, reference = run.arrays["logits"], exact["logits"]
    errors = {
        "logits": np.abs(logits - reference),
        "probabilities": np.abs(softmax(logits.astype(np.float64)) - softmax(reference)),
    }
    return {
        **{name: [float(sizes.max()), float(sizes.mean())] for name, sizes in errors.items()},
        "range": [float(reference.min()), float(reference.max())],
        "n_same": int((logits.argmax(1) == reference.argmax(1)).sum()),
        "residual": [_relative_error(run, exact, k) for k in range(run.config.n_layer + 1)],
    }


def _relative_error(run: Run, exact: Mapping[str, Array], layer: int) -> float:
    """Return the largest relative error of a token's residual stream before block `layer`."""
    reference = exact[f"blocks.{layer - 1}.resid" if layer else "embed"]
    difference = np.linalg.norm(run.residual(layer) - reference, axis=1)
    length = np.maximum(np.linalg.norm(reference, axis=1), np.finfo(np.float64).tiny)
    return float((difference / length).max())
