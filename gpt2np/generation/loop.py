"""The decode loop: sequences grow by an id or more a step, all of them in one forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.generation.sequence import RunningSequence
from gpt2np.model import GPT2, KVCache


def decode_step(model: GPT2, running: Sequence[RunningSequence]) -> None:
    """Give each of the `running` sequences, none of them finished, its next id.

    One that speculates gets as many as were guessed rightly, and one more. One that can't go on
    ends with its `error` set.

    Raises:
        CheckpointError: the logits are infinite or not numbers.
    """
    for sequence in running:
        sequence.make_room()
        if sequence.shared:
            sequence.shared.give(model, sequence)
    guesses = _guesses(running)
    new = [[*s.pending, *guessed] for s, guessed in zip(running, guesses, strict=True)]
    caches = [sequence.cache for sequence in running]
    ends = np.cumsum([len(ids) for ids in new])
    counts = [1 + len(guessed) for guessed in guesses]
    rows = [np.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
    logits = finite_logits(model, new, caches, np.concatenate(rows))
    parts = np.split(logits, np.cumsum(counts)[:-1])
    for sequence, part, guessed in zip(running, parts, guesses, strict=True):
        _take(sequence, part, guessed)


def _guesses(running: Sequence[RunningSequence]) -> list[list[int]]:
    if not any(sequence.speculation for sequence in running):
        return [[] for _ in running]
    from gpt2np.generation.speculate import guesses

    return guesses(running)


def _take(sequence: RunningSequence, logits: NDArray[Any], guessed: list[int]) -> None:
    try:
        right = sequence.take(logits, guessed)
    except InvalidArgumentError as error:
        sequence.end("cancelled", error)
        return
    if sequence.speculation:
        sequence.speculation.learn(len(guessed), right)


def finite_logits(
    model: GPT2,
    new: Sequence[Sequence[int]],
    caches: Sequence[KVCache],
    rows: ArrayLike | None = None,
) -> NDArray[Any]:
    """The logits (R, V) of some rows of the packed new ids, by default of all.

    Raises:
        CheckpointError: they are infinite or not numbers.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # it is told below, by name
        logits = model.forward(new, caches, rows=rows)
    if not np.isfinite(logits.max(-1)).all():
        raise CheckpointError(f"the model's logits are not numbers: {_cause(model)}")
    return logits


def _cause(model: GPT2) -> str:
    spoiled = [name for name, array in model.weights.items() if not np.isfinite(array).all()]
    if spoiled:
        return f"NaN or infinite numbers are stored in {', '.join(spoiled[:3])}" + (
            f" and {len(spoiled) - 3} more tensors" if len(spoiled) > 3 else ""
        )
    return "they grow beyond its dtype; its weights or config are damaged"
