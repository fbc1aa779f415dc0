"""Solutions of the exercises in 5_the_block.ipynb."""

from collections.abc import Sequence

import numpy as np

from gpt2np import GPT2, Trace
from gpt2np.interp import lens_table, zero
from gpt2np.kernels.array import Array


def block_contribution(trace: Trace, layer: int) -> Array:
    return trace[f"blocks.{layer}.attn.out"] + trace[f"blocks.{layer}.mlp.out"]


def first_appearance(model: GPT2, trace: Trace) -> str:
    table = lens_table(model, trace)
    top_ids = table.ids[:, -1, 0]
    return table.points[int(np.argmax(top_ids == top_ids[-1]))]


def most_active_neuron(trace: Trace, layer: int) -> tuple[int, int]:
    act = trace[f"blocks.{layer}.mlp.act"]
    token, neuron = np.unravel_index(act.argmax(), act.shape)
    return int(token), int(neuron)


def skip_block(model: GPT2, ids: Sequence[int], layer: int) -> Array:
    skip = zero((f"blocks.{layer}.attn.out", f"blocks.{layer}.mlp.out"))
    return model.forward([ids], hook=skip)
