"""Solutions of the exercises in 8_does_it_know_anything.ipynb."""

import math
from collections.abc import Callable

import numpy as np

from gpt2np import LanguageModel
from gpt2np.interp import zero_head
from gpt2np.model import Hook


def bits_per_character(lm: LanguageModel, text: str) -> float:
    return -lm.score(text).total / math.log(2) / len(text)


def most_surprising_token(lm: LanguageModel, text: str) -> int:
    return int(lm.score(text).logprobs.argmin())


def more_likely(lm: LanguageModel, prompt: str, first: str, second: str) -> str:
    def log_probability(ending: str) -> float:
        ids = lm.tokenizer.encode(ending)
        score = lm.score([*lm.tokenizer.encode(prompt), *ids])
        return float(score.logprobs[-len(ids) :].sum())

    return max(first, second, key=log_probability)


def most_important_head(
    loss: Callable[[Hook | None], float], layer: int, heads: int
) -> int:
    return int(np.argmax([loss(zero_head(layer, head)) for head in range(heads)]))
