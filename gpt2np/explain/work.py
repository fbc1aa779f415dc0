"""How much a pass multiplies, worked out from the config, and how long its parts take, measured.

Products only, as in `gpt2np.benchmark.counts`: all else is nothing beside them. C channels, F MLP
width, L layers, V vocabulary, N tokens.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any

from numpy.typing import NDArray

from gpt2np.benchmark.counts import block_parameters
from gpt2np.model import GPT2, GPT2Config

Array = NDArray[Any]

PARTS = {
    "embed": "token and position embedding",
    "ln_1": "layer norm before attention",
    "attn.q": "queries, keys and values",
    "attn.pattern": "scores and softmax",
    "attn.z": "values mixed",
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
"""The hook's points, without their block → what is computed between the point before and it."""

_JOINED = {"attn.k": "attn.q", "attn.v": "attn.q"}  # these three come out of one product


def part_flops(config: GPT2Config, tokens: int) -> dict[str, int]:
    """Operations of the products of each part, all blocks together, with logits for every token.

    A query counts with the keys that it sees: tokens (tokens + 1) / 2 pairs.
    """
    c, f, layers = config.n_embd, config.n_inner, config.n_layer
    pairs = tokens * (tokens + 1) // 2
    return {
        "attn.q": 2 * tokens * c * 3 * c * layers,
        "attn.pattern": 2 * pairs * c * layers,
        "attn.z": 2 * pairs * c * layers,
        "attn.out": 2 * tokens * c * c * layers,
        "mlp.pre": 2 * tokens * c * f * layers,
        "mlp.out": 2 * tokens * f * c * layers,
        "logits": 2 * tokens * c * config.vocab_size,
    }


def step_flops(config: GPT2Config, seen: int) -> int:
    """Operations of the products for one more token, the `seen`th of its text, with a cache."""
    blocks = 2 * block_parameters(config) + 4 * config.n_embd * seen
    return config.n_layer * blocks + 2 * config.n_embd * config.vocab_size


def part_seconds(model: GPT2, ids: list[int], passes: int) -> dict[str, float]:
    """Seconds between the hook's calls, by part, all blocks together: the median of some passes.

    What the hook itself takes is not counted. The first pass, which lays out the weights and
    fills the processor's caches, is not counted either.
    """
    runs = [_one_pass(model, ids) for _ in range(passes + 1)][1:]
    return {part: median(run[part] for run in runs) for part in PARTS}


def _one_pass(model: GPT2, ids: list[int]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    last = time.perf_counter()

    def stop(name: str, array: Array) -> Array:
        nonlocal last
        part = name.split(".", 2)[2] if name.startswith("blocks.") else name
        seconds[_JOINED.get(part, part)] += time.perf_counter() - last
        last = time.perf_counter()
        return array

    model.forward([ids], hook=stop)
    return seconds
