"""Distance of the exact pass from a pass of 50 digits, and the arg-max at every position.

    pip install mpmath gmpy2                                 # gmpy2 only makes mpmath faster
    python benchmarks/exact_distance.py [--checkpoints 100]

The random checkpoints differ in every setting of a config. The pass in mpmath is written here once
more, from the formulas, and shares no code with gpt2np. The exit code is 1 if an arg-max differs.
"""

import argparse
import sys
from typing import Any

import numpy as np
from record_bits import random_ids, random_model

from gpt2np import GPT2

DIGITS = 50
ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu", "tanh")
Array = np.ndarray[Any, Any]  # of mpmath numbers: dtype object


def random_checkpoint(seed: int) -> tuple[GPT2, list[int]]:
    """A random model with random settings, and random token ids."""
    rng = np.random.default_rng(seed)
    heads, size, vocab, layers, inner = rng.integers((1, 2, 50, 1, 5), (9, 9, 300, 5, 200)).tolist()
    model = random_model(
        vocab_size=vocab,
        n_embd=heads * size,
        n_head=heads,
        n_layer=layers,
        n_inner=inner,
        untied=bool(rng.integers(2)),
        activation_function=ACTIVATIONS[seed % len(ACTIVATIONS)],
        layer_norm_epsilon=float(rng.choice([1e-5, 1e-6, 1e-3])),
        scale_attn_weights=bool(rng.integers(4)),
        scale_attn_by_inverse_layer_idx=bool(rng.integers(2)),
    )
    return model, random_ids(int(rng.integers(1, 14)), seed, vocab)


def mpmath_logits(model: GPT2, ids: list[int]) -> Array:
    """GPT-2's forward pass in mpmath: (T, V)."""
    from mpmath import mp, mpf

    mp.dps = DIGITS
    exp, tanh, erf, root = (np.frompyfunc(f, 1, 1) for f in (mp.exp, mp.tanh, mp.erf, mp.sqrt))
    number = np.frompyfunc(mpf, 1, 1)
    c, w = model.config, {n: number(a.astype(float)) for n, a in model.weights.items()}
    activation = {
        "gelu_new": lambda x: (
            x / 2 * (1 + tanh(mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x * x * x)))
        ),
        "gelu": lambda x: x / 2 * (1 + erf(x / mp.sqrt(2))),
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x / (1 + exp(-x)),
        "tanh": tanh,
    }[c.activation_function]

    def norm(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / root((x * x).mean(-1, keepdims=True) + mpf(c.layer_norm_epsilon))
        y: Array = x * w[f"{name}.weight"] + w[f"{name}.bias"]
        return y

    def linear(x: Array, name: str) -> Array:
        y: Array = x @ w[f"{name}.weight"] + w[f"{name}.bias"]
        return y

    def attention(x: Array, layer: int) -> Array:
        heads = linear(x, f"h.{layer}.attn.c_attn").reshape(len(ids), 3, c.n_head, -1)
        q, k, v = heads.transpose(1, 2, 0, 3)
        divisor = mp.sqrt(q.shape[-1]) if c.scale_attn_weights else mpf(1)
        if c.scale_attn_by_inverse_layer_idx:
            divisor *= layer + 1
        weights = exp(q @ k.swapaxes(1, 2) / divisor) * np.tri(len(ids), dtype=int)
        z = weights / weights.sum(-1, keepdims=True) @ v
        return linear(z.swapaxes(0, 1).reshape(x.shape), f"h.{layer}.attn.c_proj")

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(c.n_layer):
        x = x + attention(norm(x, f"h.{i}.ln_1"), i)
        hidden = activation(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + linear(hidden, f"h.{i}.mlp.c_proj")
    logits: Array = norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T
    return logits


def compare(model: GPT2, ids: list[int], right: Array) -> tuple[float, int]:
    """Return the exact pass's largest error, in units of the RMS, and the differing arg-maxes."""
    logits = GPT2(model.config, dict(model.weights), exact=True).forward([ids])
    size = float((right * right).mean()) ** 0.5
    differing = int((logits.argmax(-1) != right.argmax(-1)).sum())
    return float(np.abs(logits - right).max()) / size, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--checkpoints", type=int, default=100)
    args = parser.parse_args()
    results, positions = [], 0
    for seed in range(args.checkpoints):
        model, ids = random_checkpoint(seed)
        results.append(compare(model, ids, mpmath_logits(model, ids)))
        positions += len(ids)
    worst, differing = max(error for error, _ in results), sum(n for _, n in results)
    print(f"{len(results)} checkpoints, {positions} positions: at most {worst:.2g} of the RMS")
    print(f"{differing} arg-maxes differ from mpmath's with {DIGITS} digits")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
