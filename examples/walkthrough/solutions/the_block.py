"""Solutions of the exercises in 5_the_block.ipynb."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np import GPT2, Trace
from gpt2np.interp import lens_table, zero

Array = NDArray[Any]


def added_by(trace: Trace, layer: int) -> Array:
    return trace[f"blocks.{layer}.attn.out"] + trace[f"blocks.{layer}.mlp.out"]


def appears_at(model: GPT2, trace: Trace) -> str:
    table = lens_table(model, trace)
    likeliest = table.ids[:, -1, 0]
    return table.points[int(np.argmax(likeliest == likeliest[-1]))]


def strongest_neuron(trace: Trace, layer: int) -> tuple[int, int]:
    act = trace[f"blocks.{layer}.mlp.act"]
    token, neuron = np.unravel_index(act.argmax(), act.shape)
    return int(token), int(neuron)


def without_block(model: GPT2, ids: Sequence[int], layer: int) -> Array:
    silent = zero((f"blocks.{layer}.attn.out", f"blocks.{layer}.mlp.out"))
    return model.forward([ids], hook=silent)
