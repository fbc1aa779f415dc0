"""Guesses of the next ids, so that one pass gives several; the result is what it is without them.

Each guessed id goes through the model as if it had been chosen. At each place the sequence then
draws its own id, with the random number it would have used anyway, and goes on as long as the guess
was the same (the verification of Leviathan et al. 2023, for a guess that is certain). Guesses come
from the text itself (prompt lookup, Saxena 2023) or from a smaller model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.penalties import penalized
from gpt2np.generation.sampler import next_id
from gpt2np.generation.sequence import RunningSequence
from gpt2np.model import GPT2, last_token_indices

_MOST = 15  # ids guessed at a time
_ROW = 0.1  # what one more row of a pass costs, as a part of the pass; measured with 8 rows
_WORTHWHILE = 1.1  # ids per pass, counted in passes without guesses
_FADE = 0.85  # what each guess leaves of the weight of those before it
_RUNS = (3, 2)  # lengths of the runs of ids that are looked up
_PROBE = 8  # ids that a draft model sees as long as its guesses don't pay


class Speculation:
    """How one sequence's ids are guessed, and how many at a time pay.

    From the share of right guesses seen lately, `accepted`, follows how many ids a pass gives if k
    are guessed, and from the cost of a guess what it takes. Where no k pays, one id is tried now
    and then, ever more rarely while it is wrong.
    """

    def __init__(self, model: GPT2, draft: GPT2 | None) -> None:
        """With a draft model, or without one by prompt lookup."""
        self.draft = None if draft is None else Draft(draft)
        self.lookup = Lookup()
        self._cost = draft.weights.parameters / model.weights.parameters if draft else 0.0
        self._right, self._tried = 1.2, 2.0
        self._pause = 0 if draft is None else 2
        self._waited = self._pause
        self.pays = True  # whether the last guess was expected to pay

    @property
    def accepted(self) -> float:
        """The share of right guesses, the late ones counting most."""
        return self._right / self._tried

    def length(self, sequences: int) -> int:
        """How many ids to guess, in a batch of so many sequences."""
        row = _ROW * sequences / (1 + _ROW * (sequences - 1))
        best = best_length(round(self.accepted, 2), round(row + self._cost, 3))
        self.pays = best > 0
        if not self.pays:
            self._waited += 1
            return int(self._waited > self._pause)
        return best

    def learn(self, guessed: int, right: int) -> None:
        """Note how many of the guessed ids were right, before the first that was wrong."""
        if guessed == 0:
            return
        self._right = self._right * _FADE + right
        self._tried = self._tried * _FADE + right + (right < guessed)
        if not self.pays:
            self._pause = min(256, 4 * self._pause + 4) if right == 0 else self._pause // 4
            self._waited = 0


@lru_cache
def best_length(accepted: float, cost: float) -> int:
    """How many ids to guess, 0 … 15, if each is right with a chance and costs a part of a pass.

    The one with the most ids per time, (1 + a + … + aᵏ) / (1 + cost × k) (Leviathan et al. 2023,
    section 3.3); none, if that is hardly more than one per pass, as both numbers are estimates.
    """
    k = np.arange(_MOST + 1)
    speeds = np.cumsum(accepted**k) / (1 + cost * k)
    best = int(np.argmax(speeds))
    return best if speeds[best] > _WORTHWHILE else 0


def guesses(running: Sequence[RunningSequence]) -> list[list[int]]:
    """For each sequence what it may go on with, as many ids as pay and as there is room for."""
    found: list[list[int]] = [[] for _ in running]
    drafting: list[_Drafting] = []
    for sequence, guessed in zip(running, found, strict=True):
        speculation = sequence.speculation
        if speculation is None:
            continue
        wanted = min(speculation.length(len(running)), sequence.room)
        if speculation.draft is None:
            guessed += speculation.lookup.guess(sequence.prompt, sequence.ids, wanted)
            continue
        wanted = min(wanted, speculation.draft.most)
        if wanted > 0:
            speculation.draft.prepare(sequence, wanted, whole=speculation.pays)
            drafting.append((sequence, speculation.draft, wanted, guessed))
    while drafting:
        drafting = _drafted(drafting)
    return found


class Lookup:
    """Guesses that a text goes on as it did after the same two or three ids before."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # a run → the place after its last occurrence

    def guess(self, prompt: Sequence[int], ids: Sequence[int], wanted: int) -> list[int]:
        """So many ids, or none if what the text ends with has not been there before."""
        known, seen = len(self._ids), len(self._ids) - len(prompt)
        new = [*prompt, *ids] if known == 0 else ids[seen:]
        for token_id in new:
            place = len(self._ids)
            for n in _RUNS:
                if place >= n:
                    self._after[tuple(self._ids[place - n :])] = place
            self._ids.append(token_id)
        for n in _RUNS:
            found = self._after.get(tuple(self._ids[-n:]))
            if found is not None and wanted > 0:
                return self._from(found, wanted)
        return []

    def _from(self, place: int, wanted: int) -> list[int]:
        """The ids from a place on; behind the text's end follows what is guessed there."""
        guessed = self._ids[place : place + wanted]
        while len(guessed) < wanted:
            guessed.append(guessed[len(guessed) - (len(self._ids) - place)])
        return guessed


class Draft:
    """A smaller model's view of one sequence; its context may begin later than the sequence's."""

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.cache = model.new_cache()
        self._begin = 0  # the first id, counted from the prompt's first, that the model sees
        self._whole = False  # whether it sees all that it can

    @property
    def most(self) -> int:
        """How many ids it can guess at a time: half of its context is for what they follow."""
        return self.model.config.n_positions // 2

    def prepare(self, sequence: RunningSequence, wanted: int, whole: bool) -> None:
        """Forget guesses that were wrong, and make room for so many.

        Not `whole`: the text's last few ids are enough, as most likely the guesses don't pay.
        """
        positions = self.model.config.n_positions
        self.cache.truncate(min(self.cache.length, max(0, sequence.length - 1 - self._begin)))
        missed = sequence.length - self._begin - self.cache.length
        if whole and not self._whole:
            self._see(sequence.length - (positions - wanted))
            self._whole = True
        elif not whole and missed > _PROBE:
            self._see(sequence.length - min(_PROBE, positions - wanted))
            self._whole = False
        if sequence.length - self._begin + wanted > positions:
            self._see(sequence.length - positions // 2)

    def _see(self, begin: int) -> None:
        self._begin = max(0, begin)
        self.cache.truncate(0)

    def unseen(self, sequence: RunningSequence, guessed: list[int]) -> list[int]:
        """The ids that have not been through the draft model."""
        return [*sequence.prompt, *sequence.ids, *guessed][self._begin + self.cache.length :]


_Drafting = tuple[RunningSequence, Draft, int, list[int]]


def _drafted(drafting: Sequence[_Drafting]) -> list[_Drafting]:
    """One more guessed id for each of one model's that can have it; those that go on, and others.

    A draft model may have fewer rows than the model, and can't take an id that it has no row for.
    """
    model = drafting[0][1].model
    going = [each for each in drafting if each[1].model is not model]
    known = range(model.config.vocab_size)
    asked = [
        each
        for each in drafting
        if each[1].model is model and max(each[1].unseen(each[0], each[3])) in known
    ]
    if not asked:
        return going
    new = [draft.unseen(sequence, guessed) for sequence, draft, _, guessed in asked]
    caches = [draft.cache for _, draft, _, _ in asked]
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged draft guesses nothing
        logits = model.forward(new, caches, logits_indices=last_token_indices(new))
    for (sequence, draft, wanted, guessed), row in zip(asked, logits, strict=True):
        token_id = _draft_id(sequence, guessed, row)
        if token_id is not None:
            guessed.append(token_id)
            if len(guessed) < wanted:
                going.append((sequence, draft, wanted, guessed))
    return going


def _draft_id(
    sequence: RunningSequence, guessed: Sequence[int], logits: NDArray[Any]
) -> int | None:
    """What the sequence would draw from a draft's logits, with the random number that is its turn.

    The same number leads to the same id where the two models' distributions are alike.
    """
    logits = _with_rows(logits, sequence.vocab_size)
    if not np.isfinite(logits.max()):
        return None
    constraint = sequence.constraint
    try:
        for token_id in guessed if constraint else ():
            constraint = constraint.advance(token_id) if constraint else None
        logits = penalized(
            logits,
            sequence.options,
            sequence.prompt,
            [*sequence.ids, *guessed],
            sequence.eos_token_ids,
            constraint,
        )
    except InvalidArgumentError:
        return None
    return next_id(logits, sequence.options, sequence.rng.after(len(guessed)))


def _with_rows(logits: NDArray[Any], vocab_size: int) -> NDArray[Any]:
    """A draft's logits as (V,): without the rows that the model lacks, -inf for those it has more.

    A bias, a penalty or a constraint may name any of the model's ids.
    """
    if len(logits) >= vocab_size:
        return logits[:vocab_size]
    missing = np.full(vocab_size - len(logits), -np.inf, logits.dtype)
    return np.concatenate([logits, missing])
