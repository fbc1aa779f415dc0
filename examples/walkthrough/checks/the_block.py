"""Checkers of the exercises in 5_the_block.ipynb."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.examples import bundled, story_ids
from gpt2np import GPT2, Trace, trace
from gpt2np.interp import lens_table, zero

Array = NDArray[Any]


def added_by(answer: Callable[[Trace, int], Array]) -> str | None:
    inside = trace(bundled(), story_ids(12))
    for layer in (0, 3):
        found = answer(inside, layer)
        if found is None:
            return "A block's two halves add attn.out and mlp.out."
        right = inside[f"blocks.{layer}.attn.out"] + inside[f"blocks.{layer}.mlp.out"]
        if np.shape(found) != right.shape:
            return f"For 12 tokens the shape is {right.shape}, not {np.shape(found)}."
        if not np.allclose(found, right, atol=1e-3):
            return f"For block {layer} it is the stream after the block minus the stream before."
    return None


def appears_at(answer: Callable[[GPT2, Trace], str]) -> str | None:
    model = bundled().model
    for prompt in (
        "Once upon a",
        '"Good morning,"',
        "The king and the queen had no",
        "He had a horse and a",  # there, gone, and there again
    ):
        inside = trace(bundled(), prompt)
        found = answer(model, inside)
        if found is None:
            return "Compare table.ids[:, -1, 0] with its last entry; table.points has the names."
        table = lens_table(model, inside)
        likeliest = table.ids[:, -1, 0]
        right = table.points[int(np.argmax(likeliest == likeliest[-1]))]
        if found != right:
            return f"After {prompt!r} it is there for the first time at {right}, not {found}."
    return None


def strongest_neuron(answer: Callable[[Trace, int], tuple[int, int]]) -> str | None:
    inside = trace(bundled(), story_ids(60))
    for layer in (0, 5):
        found = answer(inside, layer)
        act = inside[f"blocks.{layer}.mlp.act"]
        if found is None:
            return (
                "np.unravel_index turns the place that argmax returns into two numbers."
            )
        right = divmod(int(act.argmax()), act.shape[1])
        if tuple(found) != right:
            return (
                f"In block {layer} it is (token, neuron) {right}, not {tuple(found)}."
            )
    return None


def without_block(answer: Callable[[GPT2, Sequence[int], int], Array]) -> str | None:
    model, ids = bundled().model, story_ids(30)
    for layer in (1, 5):
        found = answer(model, ids, layer)
        if found is None:
            return (
                "A hook that makes both halves' outputs 0 leaves the stream as it was."
            )
        gone = zero((f"blocks.{layer}.attn.out", f"blocks.{layer}.mlp.out"))
        right = model.forward([ids], hook=gone)
        if np.shape(found) != right.shape:
            return f"Logits of all tokens have the shape {right.shape}, not {np.shape(found)}."
        if not np.allclose(found, right, atol=1e-3):
            return f"Both blocks.{layer}.attn.out and blocks.{layer}.mlp.out must be 0."
    return None
