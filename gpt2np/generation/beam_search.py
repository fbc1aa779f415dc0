"""Beam search: find the continuations of a prompt that have the highest scores.

Finds the same ids as `generate(num_beams=…, do_sample=False)` in `transformers`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.completion import FinishReason
from gpt2np.generation.logits_processors import TokenHistory, compute_logits
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import TokenLogprob, log_softmax, token_logprob
from gpt2np.generation.sequence import RunningSequence, start_sequence
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache, last_token_indices

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint


@dataclass
class Beam:
    """A continuation that a beam search extends, or has finished."""

    ids: list[int]  # includes the id that ended the continuation
    total_logprob: np.float32
    cache: KVCache
    constraint: Constraint | None
    finish_reason: FinishReason | None = None
    score: float = 0.0  # total_logprob / length ** length_penalty
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of `ids`, if requested


@dataclass
class _Search:
    """The fixed parameters of a beam search, and the best finished continuations so far."""

    request: Request
    max_length: int  # maximum number of ids of a continuation
    finished: list[Beam] = field(default_factory=list)
    is_hopeless: bool = False  # whether no running beam can still enter `finished`

    @property
    def is_full(self) -> bool:
        return len(self.finished) == self.request.options.num_beams

    @property
    def is_finished(self) -> bool:
        return self.is_hopeless or (self.is_full and self.request.options.early_stopping is True)

    def extended(self, beam: Beam, token_id: int, total_logprob: np.float32, logits: Array) -> Beam:
        """Return a beam with one more token, selected from logits (V,)."""
        ids, options, logprobs = [*beam.ids, token_id], self.request.options, beam.logprobs
        if options.logprobs is not None:
            logprobs = [*logprobs, token_logprob(logits, token_id, options.logprobs)]
        reason: FinishReason | None = None
        constraint = beam.constraint.advance(token_id) if beam.constraint else None
        if token_id in self.request.eos_token_ids:
            reason = "eos"
        elif token_id in options.stop_token_ids or (constraint and constraint.complete):
            reason = "stop"
        elif len(ids) == self.max_length:
            reason = "length"
        score = self.score(total_logprob, len(ids))
        return Beam(ids, total_logprob, beam.cache, constraint, reason, score, logprobs)

    @np.errstate(all="ignore")  # a score may be infinite with a large length_penalty
    def score(self, total_logprob: np.float32, length: int) -> float:
        return float(
            np.float32(total_logprob / np.float32(length**self.request.options.length_penalty))
        )

    def add(self, beams: Sequence[Beam]) -> None:
        """Add finished continuations; keep the best `num_beams`. No effect after the search."""
        if not self.is_finished:
            candidates = [*self.finished, *beams]
            candidates.sort(key=lambda beam: beam.score, reverse=True)
            self.finished = candidates[: self.request.options.num_beams]


def beam_search(model: GPT2, request: Request) -> list[Beam]:
    """Return up to `num_beams` continuations of a prompt, best first.

    One forward pass extends every beam by one token. `beam_sequences`, not this function, applies
    the option `stop`.

    Raises the errors of `start_sequence`, and:
        InvalidArgumentError: no beam has an allowed next token, and no continuation has ended.
    """
    prompt, options = list(request.ids), request.options
    start = start_sequence(model, request)
    max_length = min(options.max_new_tokens, model.config.n_positions - len(prompt) + 1)
    search = _Search(request, max_length)
    beams = [Beam([], np.float32(0), start.cache, request.constraint)]
    new = [prompt]
    while True:
        logits = compute_logits(model, new, [beam.cache for beam in beams], last_token_indices(new))
        beams = _next_beams(search, beams, logits)
        if time.monotonic() >= start.deadline:
            search.add([replace(beam, finish_reason="time") for beam in beams])
            beams = []
        if not beams or search.is_finished:
            return search.finished
        new = [[beam.ids[-1]] for beam in beams]


def _next_beams(search: _Search, beams: Sequence[Beam], logits: Array) -> list[Beam]:
    """Return the running beams after one more token; add ended continuations to `search`."""
    request, options = search.request, search.request.options
    ended: list[Beam] = []
    running: list[tuple[int, Beam]] = []  # (index of the extended beam, new beam)
    n_end_ids = len({*request.eos_token_ids}) + len(options.stop_token_ids)
    candidates = _candidates(search, beams, logits, max(2, 1 + n_end_ids) * options.num_beams)
    for rank, (index, token_id, total_logprob) in enumerate(candidates):
        longer = search.extended(beams[index], token_id, total_logprob, logits[index])
        if longer.finish_reason is None:
            running.append((index, longer))
        elif rank < options.num_beams:  # a worse candidate that ends is dropped
            ended.append(longer)
    search.add(ended)
    running = running[: options.num_beams]
    if running and search.is_full:  # can the best running beam still enter `finished`?
        best, length = running[0][1].total_logprob, len(running[0][1].ids)
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = search.max_length
        if search.score(best, length) <= search.finished[-1].score:
            search.is_hopeless = True
    used: set[int] = set()
    for index, beam in running:  # only the first extension of a beam takes over its KV cache
        if index in used:
            beam.cache = beam.cache.copy()
        used.add(index)
    return [beam for _, beam in running]


def _candidates(
    search: _Search, beams: Sequence[Beam], logits: Array, count: int
) -> list[tuple[int, int, np.float32]]:
    """Return the `count` most likely one-token extensions of the beams, best first.

    An extension is (beam index, token id, total log probability).
    """
    rows, errors = [], []
    for beam, row in zip(beams, logits, strict=True):
        logprobs = log_softmax(row).astype(np.float32)
        history = TokenHistory(search.request.ids, beam.ids)
        try:
            logprobs = search.request.process(logprobs, history, beam.constraint)
            rows.append(logprobs + beam.total_logprob)
        except InvalidArgumentError as error:  # other beams may continue
            rows.append(np.full(len(row), -np.inf, np.float32))
            errors.append(error)
    if len(errors) == len(beams) and not search.finished:
        raise errors[0]
    totals = np.stack(rows)
    flat = totals.reshape(-1)
    count = min(count, len(flat))
    best = np.flatnonzero(flat >= np.partition(flat, -count)[-count])  # with all ties
    best = best[np.argsort(-flat[best], kind="stable")][:count]
    positions = (divmod(int(i), totals.shape[1]) for i in best if np.isfinite(flat[i]))
    return [(index, token_id, totals[index, token_id]) for index, token_id in positions]


def beam_sequences(model: GPT2, request: Request) -> list[RunningSequence]:
    """Run a beam search. Return the best continuations, best first, as sequences that have ended.

    Each continuation ends before its first stop string.
    """
    started = time.perf_counter()
    beams = beam_search(model, request)[: request.options.num_return_sequences]
    sequences = []
    for beam in beams:
        sequence = start_sequence(model, request)
        for token_id in beam.ids:
            sequence.ids.append(token_id)
            sequence.detokenizer.push(token_id)
            if sequence.detokenizer.stop_text:
                break
        sequence.logprobs = beam.logprobs[: len(sequence.ids)]
        sequence.seconds = time.perf_counter() - started
        sequence.end(beam.finish_reason or "cancelled")
        sequences.append(sequence)
    return sequences
