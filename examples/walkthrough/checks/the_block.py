"""Checkers of the exercises in 5_the_block.ipynb."""

from collections.abc import Callable, Sequence

import numpy as np

from checks.examples import bundled, story_ids
from gpt2np import GPT2, Trace, trace
from gpt2np.interp import lens_table, zero
from gpt2np.kernels.array import Array


def block_contribution(answer: Callable[[Trace, int], Array]) -> str | None:
    activations = trace(bundled(), story_ids(12))
    for layer in (0, 3):
        result = answer(activations, layer)
        if result is None:
            return "The two halves of a block add attn.out and mlp.out."
        expected = (
            activations[f"blocks.{layer}.attn.out"]
            + activations[f"blocks.{layer}.mlp.out"]
        )
        if np.shape(result) != expected.shape:
            return f"For 12 tokens, expected the shape {expected.shape}, got {np.shape(result)}."
        if not np.allclose(result, expected, atol=1e-3):
            return f"For block {layer}: the residual stream after it minus the one before it."
    return None


def first_appearance(answer: Callable[[GPT2, Trace], str]) -> str | None:
    model = bundled().model
    for prompt in (
        "Once upon a",
        '"Good morning,"',
        "The king and the queen had no",
        "He had a horse and a",  # appears, disappears, and appears again
    ):
        activations = trace(bundled(), prompt)
        result = answer(model, activations)
        if result is None:
            return "Compare table.ids[:, -1, 0] with its last entry; table.points has the names."
        table = lens_table(model, activations)
        top_ids = table.ids[:, -1, 0]
        expected = table.points[int(np.argmax(top_ids == top_ids[-1]))]
        if result != expected:
            return f"After {prompt!r}, it is most likely first at {expected}, not {result}."
    return None


def most_active_neuron(answer: Callable[[Trace, int], tuple[int, int]]) -> str | None:
    activations = trace(bundled(), story_ids(60))
    for layer in (0, 5):
        result = answer(activations, layer)
        act = activations[f"blocks.{layer}.mlp.act"]
        if result is None:
            return "np.unravel_index converts the index that argmax returns to (token, neuron)."
        expected = divmod(int(act.argmax()), act.shape[1])
        if tuple(result) != expected:
            return f"In block {layer}, expected (token, neuron) {expected}, got {tuple(result)}."
    return None


def skip_block(answer: Callable[[GPT2, Sequence[int], int], Array]) -> str | None:
    model, ids = bundled().model, story_ids(30)
    for layer in (1, 5):
        result = answer(model, ids, layer)
        if result is None:
            return "A hook that sets the outputs of both halves to 0 skips the block."
        skip = zero((f"blocks.{layer}.attn.out", f"blocks.{layer}.mlp.out"))
        expected = model.forward([ids], hook=skip)
        if np.shape(result) != expected.shape:
            return f"Expected logits of the shape {expected.shape}, got {np.shape(result)}."
        if not np.allclose(result, expected, atol=1e-3):
            return f"Set both blocks.{layer}.attn.out and blocks.{layer}.mlp.out to 0."
    return None
