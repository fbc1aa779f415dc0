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
from gpt2np.generation.logits_processors import compute_logits
from gpt2np.generation.options import GenerationOptions
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
    n_left: int  # maximum number of further ids
    total_logprob: np.float32
    cache: KVCache
    constraint: Constraint | None
    finish_reason: FinishReason | None = None
    score: float = 0.0  # total_logprob / length ** length_penalty
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of `ids`, if requested

    def longer(
        self, request: Request, token_id: int, total_logprob: np.float32, logits: Array
    ) -> Beam:
        """Return the continuation with one more token, selected from logits (V,)."""
        ids, options, logprobs = [*self.ids, token_id], request.options, self.logprobs
        if options.logprobs is not None:
            logprobs = [*logprobs, token_logprob(logits, token_id, options.logprobs)]
        reason: FinishReason | None = None
        constraint = self.constraint.advance(token_id) if self.constraint else None
        if token_id in request.eos_token_ids:
            reason = "eos"
        elif token_id in options.stop_token_ids or (constraint and constraint.complete):
            reason = "stop"
        elif self.n_left == 1:
            reason = "length"
        score, n_left = _score(total_logprob, len(ids), options), self.n_left - 1
        return Beam(ids, n_left, total_logprob, self.cache, constraint, reason, score, logprobs)


@np.errstate(all="ignore")  # a score may be infinite with a large length_penalty
def _score(total_logprob: np.float32, length: int, options: GenerationOptions) -> float:
    return float(np.float32(total_logprob / np.float32(length**options.length_penalty)))


def beam_search(model: GPT2, request: Request) -> list[Beam]:
    """Return up to `num_beams` continuations of a prompt, best first.

    One forward pass extends every beam by one token. `beam_sequences`, not this function, applies
    the option `stop`.

    Raises the errors of `start_sequence`, and:
        InvalidArgumentError: no beam has an allowed next token, and no continuation has ended.
    """
    prompt, options = list(request.ids), request.options
    start, finished = start_sequence(model, request), list[Beam]()
    running = [Beam([], start.tokens_left + 1, np.float32(0), start.cache, request.constraint)]
    while running:
        # 1. One pass computes the logits after each beam.
        new = [beam.ids[-1:] or prompt for beam in running]
        caches = [beam.cache for beam in running]
        logits = compute_logits(model, new, caches, last_token_indices(new))
        # 2. The most likely beams with one more token go on, or end.
        running = _extended(request, running, logits, finished)
        # 3. The search ends when its time is up, or no running beam can be among the best.
        if running and len(finished) == options.num_beams:
            best, is_patient = running[0], options.early_stopping == "never"
            n_more = best.n_left if is_patient and options.length_penalty > 0 else 0
            highest = _score(best.total_logprob, len(best.ids) + n_more, options)
            if options.early_stopping is True or highest <= finished[-1].score:
                running = []
        if time.monotonic() >= start.deadline:
            _keep_best(finished, [replace(beam, finish_reason="time") for beam in running], options)
            running = []
    return finished


def _extended(
    request: Request, beams: Sequence[Beam], logits: Array, finished: list[Beam]
) -> list[Beam]:
    """Return the running beams after one more token; add those that end to `finished`."""
    options = request.options
    ended: list[Beam] = []
    running: list[Beam] = []
    n_end_ids = len({*request.eos_token_ids}) + len(options.stop_token_ids)
    count = max(2, 1 + n_end_ids) * options.num_beams
    candidates = _candidates(request, beams, logits, count, bool(finished))
    for rank, (index, token_id, total_logprob) in enumerate(candidates):
        beam = beams[index].longer(request, token_id, total_logprob, logits[index])
        if beam.finish_reason and rank < options.num_beams:  # one that ranks below is dropped
            ended.append(beam)
        elif not beam.finish_reason and len(running) < options.num_beams:
            if any(beam.cache is other.cache for other in running):
                beam.cache = beam.cache.copy()  # the first extension took over the KV cache
            running.append(beam)
    _keep_best(finished, ended, options)
    return running


def _keep_best(finished: list[Beam], ended: Sequence[Beam], options: GenerationOptions) -> None:
    """Add beams that have ended to `finished`; keep the best `num_beams`."""
    finished += ended
    finished.sort(key=lambda beam: beam.score, reverse=True)
    del finished[options.num_beams :]


def _candidates(
    request: Request, beams: Sequence[Beam], logits: Array, count: int, may_fail: bool
) -> list[tuple[int, int, np.float32]]:
    """Return the `count` most likely one-token extensions of the beams, best first.

    An extension is (beam index, token id, total log probability).
    """
    rows, errors = [], []
    for beam, row in zip(beams, logits, strict=True):
        logprobs = log_softmax(row).astype(np.float32)
        try:
            allowed = beam.constraint.allowed() if beam.constraint else None
            logprobs = request.process(logprobs, beam.ids, allowed)
            rows.append(logprobs + beam.total_logprob)
        except InvalidArgumentError as error:  # other beams may continue
            rows.append(np.full(len(row), -np.inf, np.float32))
            errors.append(error)
    if len(errors) == len(beams) and not may_fail:
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
