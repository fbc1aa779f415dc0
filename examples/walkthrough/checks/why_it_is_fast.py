"""Checkers of the exercises in 7_why_it_is_fast.ipynb."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from checks.examples import bundled, story_ids
from gpt2np import GPT2, GPT2Config, KVCache
from gpt2np.benchmark.counts import weight_bytes_per_token
from gpt2np.kernels.array import Array
from gpt2np.runtime.kv_cache import cache_nbytes

CONFIGS = (GPT2Config(), GPT2Config(n_embd=256, n_layer=6, n_head=4, vocab_size=4096))


def cache_bytes(answer: Callable[[GPT2Config, int], int]) -> str | None:
    for config in CONFIGS:
        for tokens in (1, 100):
            result, expected = answer(config, tokens), cache_nbytes(config, tokens)
            if result is None:
                return "Each token has a key and a value of n_embd numbers per block."
            if result != expected:
                shape = f"{config.n_layer} blocks, {config.n_embd} channels"
                count = "1 token" if tokens == 1 else f"{tokens} tokens"
                return f"For {count}, {shape}: expected {expected:,} bytes, got {result:,}."
    return None


def tokens_per_second(answer: Callable[[GPT2Config, float, int], float]) -> str | None:
    for config in CONFIGS:
        for itemsize in (4, 2):
            result = answer(config, 2e10, itemsize)
            if result is None:
                return "Divide the bandwidth by the bytes of weights read per token."
            expected = 2e10 / weight_bytes_per_token(config, itemsize)
            if abs(result / expected - 1) > 0.001:
                return f"At 20 GB/s, {itemsize} bytes per weight: {expected:.1f}, not {result:.1f}."
    return None


class _CountingModel:
    """A model that counts the tokens of each call of forward."""

    def __init__(self, model: GPT2) -> None:
        self.config, self.weights = model.config, model.weights
        self.new_cache: Callable[[], KVCache] = model.new_cache
        self.calls: list[int] = []
        self._model = model

    def forward(
        self, sequences: Sequence[ArrayLike], *args: Any, **options: Any
    ) -> Array:
        self.calls.append(sum(np.size(ids) for ids in sequences))
        return self._model.forward(sequences, *args, **options)


def generate_greedily(
    answer: Callable[[Any, Sequence[int], int], Sequence[int]],
) -> str | None:
    model, ids = bundled().model, story_ids(20)
    counting = _CountingModel(model)
    result = answer(counting, prompt := list(ids), 10)
    if result is None:
        return "Start with cache = model.new_cache() and model.forward([ids], [cache])."
    expected = bundled().generate(ids, temperature=0, max_new_tokens=10).ids
    if list(result) != expected:
        return f"After 20 ids of a story, expected {expected}, got {list(result)}."
    if prompt != ids:
        return "The function has changed its argument `ids`; use a list of your own."
    if sum(counting.calls) > 30:
        return f"The calls had {counting.calls} tokens; pass each token to the model only once."
    return None
