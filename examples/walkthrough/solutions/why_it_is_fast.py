"""Solutions of the exercises in 7_why_it_is_fast.ipynb."""

from collections.abc import Sequence

from gpt2np import GPT2, GPT2Config
from gpt2np.benchmark.counts import weight_bytes_per_token


def cache_bytes(config: GPT2Config, tokens: int) -> int:
    return 2 * config.n_layer * config.n_embd * tokens * 4


def tokens_per_second(config: GPT2Config, bandwidth: float, itemsize: int) -> float:
    return bandwidth / weight_bytes_per_token(config, itemsize)


def generate_greedily(model: GPT2, ids: Sequence[int], count: int) -> list[int]:
    cache, generated = model.new_cache(), list[int]()
    new = list(ids)
    while len(generated) < count:
        logits = model.forward([new], [cache], logits_indices=[len(new) - 1])
        new = [int(logits[0].argmax())]
        generated += new
    return generated
