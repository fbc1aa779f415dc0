"""Checkers of the exercises in 7_why_it_is_fast.ipynb."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checks.examples import bundled, story_ids
from gpt2np import GPT2, GPT2Config, KVCache
from gpt2np.benchmark.counts import weight_bytes_per_token
from gpt2np.runtime.kv_cache import cache_nbytes

CONFIGS = (GPT2Config(), GPT2Config(n_embd=256, n_layer=6, n_head=4, vocab_size=4096))


def cache_bytes(answer: Callable[[GPT2Config, int], int]) -> str | None:
    for config in CONFIGS:
        for tokens in (1, 100):
            found, right = answer(config, tokens), cache_nbytes(config, tokens)
            if found is None:
                return "A token has a key and a value of n_embd numbers in each of n_layer blocks."
            if found != right:
                shape = f"{config.n_layer} blocks, {config.n_embd} channels"
                many = "1 token" if tokens == 1 else f"{tokens} tokens"
                return f"For {many}, {shape}: {right:,} bytes, not {found:,}."
    return None


def tokens_per_second(answer: Callable[[GPT2Config, float, int], float]) -> str | None:
    for config in CONFIGS:
        for itemsize in (4, 2):
            found = answer(config, 2e10, itemsize)
            if found is None:
                return (
                    "Divide the bandwidth by the bytes of weights that a token needs."
                )
            right = 2e10 / weight_bytes_per_token(config, itemsize)
            if abs(found / right - 1) > 0.001:
                return f"At 20 GB/s, {itemsize} bytes a weight, it is {right:.1f}, not {found:.1f}."
    return None


class _Counting:
    """A model that counts the tokens of each call."""

    def __init__(self, model: GPT2) -> None:
        self.config, self.weights = model.config, model.weights
        self.new_cache: Callable[[], KVCache] = model.new_cache
        self.calls: list[int] = []
        self._model = model

    def forward(
        self, sequences: Sequence[ArrayLike], *args: Any, **options: Any
    ) -> NDArray[Any]:
        self.calls.append(sum(np.size(ids) for ids in sequences))
        return self._model.forward(sequences, *args, **options)


def greedy(answer: Callable[[Any, Sequence[int], int], Sequence[int]]) -> str | None:
    model, ids = bundled().model, story_ids(20)
    counting = _Counting(model)
    found = answer(counting, given := list(ids), 10)
    if found is None:
        return "Start with cache = model.new_cache() and model.forward([ids], [cache])."
    right = bundled().generate(ids, temperature=0, max_new_tokens=10).ids
    if list(found) != right:
        return f"After 20 ids of a story come {right}, not {list(found)}."
    if given != ids:
        return "The list of ids that you were given has changed; begin with a list of your own."
    if sum(counting.calls) > 30:
        return f"Your calls took {counting.calls} tokens; each may go through the model only once."
    return None
