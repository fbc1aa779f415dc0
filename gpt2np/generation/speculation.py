"""Speculative decoding: several tokens per forward pass. The generated text stays the same.

Draft tokens come from n-grams or from a smaller model (`drafts`). The target model computes the
logits at all draft tokens in one pass. At each position, a token is selected from these logits,
with the random number that decoding without drafts would use. Draft tokens are accepted up to the
first that differs from the selected token. This is the verification of Leviathan et al. 2023 for a
deterministic draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.drafts import MAX_ROWS, PASS_COSTS, ModelDrafter, NgramDrafter
from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.sampling import next_id
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.model import last_token_indices

_MIN_SPEEDUP = 1.02  # of n-gram drafts, relative to none; pays for the search


def propose_drafts(batch: Sequence[RunningSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence, as many as should pay off.

    A pass with draft tokens has at most `MAX_ROWS` tokens, each sequence's last token included. A
    batch with a prompt gets no drafts: its pass is compute-bound, so drafts would cost time.
    """
    drafts: list[list[int]] = [[] for _ in batch]
    speculating = [(i, s) for i, s in enumerate(batch) if s.drafter and s.tokens_left > 0]
    if not speculating or len(batch) >= MAX_ROWS:
        return drafts
    if any(s.n_pending > 1 or s.scores_prompt for s in batch):
        return drafts
    candidates: list[tuple[float, int, int]] = []  # -probability, length of the draft, sequence
    min_probability = _min_probability(len(batch))
    for i, sequence in speculating:
        drafter = sequence.drafter
        if isinstance(drafter, NgramDrafter):
            length = min(MAX_ROWS - len(batch), sequence.tokens_left)
            drafts[i], probabilities = drafter.propose(
                sequence.request.ids, sequence.ids, length, min_probability, sequence.vocab_size
            )
            candidates += [(-p, k, i) for k, p in enumerate(probabilities, 1)]
        elif drafter and len(batch) == 1:
            return [_model_draft(drafter, sequence)]
    candidates.sort()
    lengths = {i: length for _, length, i in candidates[: _best_count(candidates, len(batch))]}
    return [draft[: lengths.get(i, 0)] for i, draft in enumerate(drafts)]


def _model_draft(drafter: ModelDrafter, sequence: RunningSequence) -> list[int]:
    """Propose draft tokens of a draft model, as many as should pay off.

    The draft ends before a token id for which the draft model has no embedding.
    """
    draft: list[int] = []
    n_free = drafter.model.config.n_positions - sequence.length
    length = min(drafter.draft_length(), sequence.tokens_left, n_free)
    if drafter.cache.length >= sequence.length:  # rejected draft tokens
        drafter.cache.truncate(sequence.length - 1)
    while len(draft) < length:
        start = drafter.cache.length
        ids = [*sequence.ids_from(start), *draft[max(0, start - sequence.length) :]]
        if max(ids) >= drafter.model.config.vocab_size:
            break
        indices = last_token_indices([ids])
        with np.errstate(all="ignore"):  # a damaged draft model gives no draft
            logits = drafter.model.forward([ids], [drafter.cache], logits_indices=indices)
        token_id = _draft_id(sequence, draft, logits[0])
        if token_id is None:
            break
        draft.append(token_id)
    return draft


def _draft_id(sequence: RunningSequence, draft: Sequence[int], logits: Array) -> int | None:
    """Select the next draft token from the draft model's logits; None if no token is possible.

    Draft model and target model use the same random number for a position, so they select the same
    token if their distributions are similar.
    """
    # Options refer to ids of the target model; the draft model may have more or fewer ids.
    logits = logits[: sequence.vocab_size]
    if n_missing := sequence.vocab_size - len(logits):
        logits = np.concatenate([logits, np.full(n_missing, -np.inf, logits.dtype)])
    if not np.isfinite(logits.max()):
        return None
    constraint = sequence.constraint
    try:
        for token_id in draft:
            constraint = constraint and constraint.advance(token_id)
        logits = process_logits(
            logits,
            sequence.request.options,
            replace(sequence.history, draft=draft),
            sequence.request.eos_token_ids,
            constraint,
        )
    except InvalidArgumentError:
        return None
    random = partial(sequence.rng.number, len(sequence.ids) + len(draft))
    return next_id(logits, sequence.request.options, random)


@lru_cache
def _min_probability(n_sequences: int) -> float:
    """Return the minimum acceptance probability at which draft tokens can pay off.

    Added to a pass with one token per sequence, draft tokens must yield at least as many tokens as
    plain decoding in the added time.
    """
    costs = [cost / PASS_COSTS[n_sequences] - 1 for cost in PASS_COSTS[n_sequences + 1 :]]
    return max(0.0, min(n_sequences * cost / r for r, cost in enumerate(costs, 1)))


def _best_count(candidates: Sequence[tuple[float, int, int]], n_sequences: int) -> int:
    """Return how many `candidates`, draft tokens sorted likeliest first, make decoding fastest."""
    best, n_tokens = 0, float(n_sequences)
    best_speed = _MIN_SPEEDUP * n_tokens / PASS_COSTS[n_sequences]
    for count, (negative, _, _) in enumerate(candidates[: MAX_ROWS - n_sequences], 1):
        n_tokens -= negative
        if (speed := n_tokens / PASS_COSTS[n_sequences + count]) > best_speed:
            best, best_speed = count, speed
    return best
