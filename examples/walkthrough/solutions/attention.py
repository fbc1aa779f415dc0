"""Solutions of the exercises in 4_attention.ipynb."""

import math
from collections.abc import Sequence

import numpy as np

from gpt2np import GPT2, trace
from gpt2np.interp import zero_head
from gpt2np.kernels.array import Array


def attention_score(q: Array, k: Array, i: int, j: int) -> float:
    return -math.inf if j > i else float(q[i] @ k[j] / math.sqrt(q.shape[1]))


def mean_distance(pattern: Array) -> Array:
    positions = np.arange(pattern.shape[1])
    distance: Array = (pattern * (positions[:, None] - positions)).sum(-1).mean(-1)
    return distance


def previous_token_head(model: GPT2, ids: Sequence[int]) -> tuple[int, int]:
    patterns = trace(model, ids, "blocks.*.attn.pattern").values()
    weights = np.array(
        [np.diagonal(pattern, -1, 1, 2).mean(-1) for pattern in patterns]
    )
    layer, head = np.unravel_index(weights.argmax(), weights.shape)
    return int(layer), int(head)


def ablate_head(model: GPT2, ids: Sequence[int], layer: int, head: int) -> Array:
    return model.forward([ids], hook=zero_head(layer, head))
