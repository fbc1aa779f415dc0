"""Beam search: the continuations with the highest score, of all that a beam of them leads to.

It follows `transformers`' `generate(num_beams=…, do_sample=False)` step by step, with its meaning
of length penalty and early stopping, and gives its ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.finite_logits import finite_logits
from gpt2np.generation.logprobs import log_softmax
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.penalties import penalized
from gpt2np.generation.sequence import FinishReason, start_sequence
from gpt2np.model import GPT2, KVCache, last_token_indices

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint

Array = NDArray[Any]


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that has ended.

    Attributes:
        ids: what was generated, including the id that ended it.
        score: the sum of its log probabilities, divided by its length to the length penalty.
        finish_reason: "eos", "stop" (a stop id, or the constraint is complete) or "length".
    """

    ids: list[int]
    score: float
    finish_reason: FinishReason


@dataclass
class _Beam:
    """A continuation that goes on: the sum of its log probabilities, and what it has seen."""

    ids: list[int]
    total: np.float32
    cache: KVCache
    constraint: Constraint | None


@dataclass
class _Search:
    """What stays the same while the beams change, and what they have led to so far."""

    prompt: list[int]
    options: GenerationOptions
    eos_token_ids: Collection[int]
    longest: int  # ids that may be generated
    done: list[Hypothesis] = field(default_factory=list)
    hopeless: bool = False  # whether no running beam can get among those done

    @property
    def full(self) -> bool:
        return len(self.done) == self.options.num_beams

    def reason(self, ids: Sequence[int], constraint: Constraint | None) -> FinishReason | None:
        if ids[-1] in self.eos_token_ids:
            return "eos"
        if ids[-1] in self.options.stop_token_ids or (constraint and constraint.complete):
            return "stop"
        return "length" if len(ids) == self.longest else None

    def score(self, total: np.float32, length: int) -> float:
        return float(np.float32(total / np.float32(length**self.options.length_penalty)))

    def add(self, found: Sequence[Hypothesis]) -> None:
        """Take hypotheses that have just ended; the best `num_beams` of all stay."""
        if not self.hopeless and not (self.full and self.options.early_stopping is True):
            everything = [*self.done, *found]
            everything.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
            self.done = everything[: self.options.num_beams]

    def judge(self, best: np.float32, length: int) -> None:
        """Whether the best running beam, of this length, may still get among those done."""
        options = self.options
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self.longest
        if self.full and self.score(best, length) <= self.done[-1].score:
            self.hopeless = True


def beam_search(
    model: GPT2,
    prompt: Sequence[int],
    options: GenerationOptions,
    eos_token_ids: Collection[int],
    constraint: Constraint | None = None,
) -> list[Hypothesis]:
    """The best continuations of a prompt, at most `num_beams`, the best first.

    The prompt is computed once; then each step computes one id for each beam, in one pass. Stop
    texts are not looked for.

    Raises:
        ContextLengthError, InvalidArgumentError: see `start_sequence`; also if every id is ruled
            out for all beams, before one of them has ended.
    """
    start = start_sequence(model, prompt, options, eos_token_ids)
    longest = min(options.max_new_tokens, model.config.n_positions - len(prompt) + 1)
    search = _Search(list(prompt), options, eos_token_ids, longest)
    beams = [_Beam([], np.float32(0), start.cache, constraint)]
    new = [list(prompt)]
    while True:
        logits = finite_logits(model, new, [beam.cache for beam in beams], last_token_indices(new))
        beams = _next_beams(search, beams, logits)
        early = search.full and options.early_stopping is True
        if not beams or search.hopeless or early:
            return search.done
        new = [[beam.ids[-1]] for beam in beams]


def _next_beams(search: _Search, beams: Sequence[_Beam], logits: Array) -> list[_Beam]:
    """The beams after one more id each; what has ended goes to the search."""
    options, ended, going = search.options, [], []
    ends = len({*search.eos_token_ids}) + len(options.stop_token_ids)
    candidates = _best(search, beams, logits, max(2, 1 + ends) * options.num_beams)
    for rank, (number, token_id, total) in enumerate(candidates):
        beam = beams[number]
        ids = [*beam.ids, token_id]
        constraint = beam.constraint.advance(token_id) if beam.constraint else None
        reason = search.reason(ids, constraint)
        if reason is None:
            going.append((number, _Beam(ids, total, beam.cache, constraint)))
        elif rank < options.num_beams:  # the others are there to go on, not to end
            ended.append(Hypothesis(ids, search.score(total, len(ids)), reason))
    search.add(ended)
    going = going[: options.num_beams]
    if going:
        search.judge(going[0][1].total, len(going[0][1].ids))
    return _with_own_caches(going)


def _best(
    search: _Search, beams: Sequence[_Beam], logits: Array, count: int
) -> list[tuple[int, int, np.float32]]:
    """The most likely continuations of all beams by one id: beam, id, sum; the best first."""
    rows, errors = [], []
    for beam, row in zip(beams, logits, strict=True):
        try:
            rows.append(_totals(search, beam, row))
        except InvalidArgumentError as error:  # the other beams may go on
            rows.append(np.full(len(row), -np.inf, np.float32))
            errors.append(error)
    if len(errors) == len(beams) and not search.done:
        raise errors[0]
    totals = np.stack(rows)
    flat = totals.reshape(-1)
    best = np.argpartition(-flat, min(count, len(flat)) - 1)[:count]
    best = best[np.lexsort((best, -flat[best]))]
    places = (divmod(int(place), totals.shape[1]) for place in best if np.isfinite(flat[place]))
    return [(number, token_id, totals[number, token_id]) for number, token_id in places]


def _totals(search: _Search, beam: _Beam, logits: Array) -> Array:
    """The sum of log probabilities (V) of a beam with each possible next id."""
    logs = log_softmax(logits).astype(np.float32)
    generated, ends = beam.ids, search.eos_token_ids
    logs = penalized(logs, search.options, search.prompt, generated, ends, beam.constraint)
    return logs + beam.total


def _with_own_caches(beams: Sequence[tuple[int, _Beam]]) -> list[_Beam]:
    """Beams that came from the same one, by number, get a copy of its cache each but the first."""
    taken: set[int] = set()
    for number, beam in beams:
        if number in taken:
            beam.cache = beam.cache.copy()
        taken.add(number)
    return [beam for _, beam in beams]
