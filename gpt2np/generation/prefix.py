"""Prefixes: the start of many prompts, whose keys and values are computed once.

prefix = lm.prefix("The story of a king.")
for question in questions:
    print(lm.generate(question, prefix=prefix).text)
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.generation.logits_processors import compute_logits
from gpt2np.model import GPT2, KVCache

__all__ = ["Prefix"]


@dataclass(frozen=True, eq=False, repr=False)
class Prefix:
    """The common start of many prompts, computed once by `LanguageModel.prefix`.

    Threads can share a prefix.

    Attributes:
        text: the text.
        ids: the token ids.
        cache: the keys and values of all `ids`; read-only.
        model: the model that computed `cache`.
    """

    text: str
    ids: list[int]
    cache: KVCache
    model: GPT2


def compute_prefix(model: GPT2, text: str, ids: list[int]) -> Prefix:
    """Compute the keys and values of a prefix."""
    cache = model.new_cache()
    compute_logits(model, [ids], [cache], logits_indices=[])
    return Prefix(text, ids, cache, model)
