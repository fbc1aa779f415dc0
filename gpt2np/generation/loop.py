"""The decode loop: sequences grow by an id or more a step, all of them in one forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.finite_logits import finite_logits
from gpt2np.generation.sequence import RunningSequence
from gpt2np.model import GPT2


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
