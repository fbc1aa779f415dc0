"""Speculative decoding: several tokens per forward pass. The generated text stays the same.

Draft tokens come from n-grams or from a smaller model (`drafts`). The target model computes the
logits at all draft tokens in one pass. At each position, a token is selected from these logits,
with the random number that decoding without drafts would use. Draft tokens are accepted up to the
first that differs from the selected token. This is the verification of Leviathan et al. 2023 for a
deterministic draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.drafts import ModelDrafter, NgramDrafter
from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.sampling import next_id
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.model import last_token_indices

# Time of a pass over n rows divided by that of one row; index 0 is unused. Means of the bundled
# model and of GPT-2 small on Zen 4, in one process (`benchmarks/speculation.py --rows`). Even
# numbers of rows suit the small-matrix kernel.
PASS_COSTS = (
    *(1.0, 1.0, 1.01, 1.25, 1.08, 1.32, 1.38, 1.55, 1.52),
    *(1.65, 1.68, 1.9, 1.87, 2.05, 2.1, 2.27, 2.25),
)
MAX_ROWS = len(PASS_COSTS) - 1
"""Maximum number of rows of a pass with draft tokens."""

_MIN_SPEEDUP = 1.02  # with n-gram drafts, relative to none; pays for the search


def propose_drafts(batch: Sequence[RunningSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence, as many as should pay off.

    A pass with draft tokens has at most `MAX_ROWS` tokens, each sequence's last token included.
    """
    drafts = _drafts_of_models(batch)
    candidates: list[tuple[float, int, int]] = []  # -probability, length of the draft, sequence
    proposals: dict[int, list[int]] = {}
    n_rows = len(batch) + sum(map(len, drafts))
    if n_rows >= MAX_ROWS:
        return drafts
    min_probability = _min_probability(n_rows, len(batch))
    for i, sequence in enumerate(batch):
        drafter = sequence.drafter
        if isinstance(drafter, NgramDrafter):
            length = min(MAX_ROWS - n_rows, sequence.tokens_left)
            proposals[i], probabilities = drafter.propose(
                sequence.request.ids, sequence.ids, length, min_probability, sequence.vocab_size
            )
            candidates += [(-p, k, i) for k, p in enumerate(probabilities, 1)]
    candidates.sort()
    for _, length, i in candidates[: _best_count(candidates, n_rows, len(batch))]:
        drafts[i] = proposals[i][:length]
    return drafts


def _drafts_of_models(batch: Sequence[RunningSequence]) -> list[list[int]]:
    """Return the tokens that draft models propose; [] for a sequence without draft model."""
    drafts: list[list[int]] = [[] for _ in batch]
    if len(batch) >= MAX_ROWS or not any(isinstance(s.drafter, ModelDrafter) for s in batch):
        return drafts
    costs = [cost / PASS_COSTS[len(batch)] for cost in PASS_COSTS[len(batch) :: len(batch)]]
    unfinished: list[_Drafting] = []
    for sequence, draft in zip(batch, drafts, strict=True):
        if isinstance(drafter := sequence.drafter, ModelDrafter):
            length = min(drafter.draft_length(costs), len(costs) - 1, sequence.tokens_left)
            length = min(length, drafter.model.config.n_positions - sequence.length)
            if drafter.cache.length >= sequence.length:  # rejected draft tokens
                drafter.cache.truncate(sequence.length - 1)
            unfinished.append(_Drafting(sequence, drafter, length, draft))
    while unfinished := [each for each in unfinished if len(each.draft) < each.length]:
        _extend_drafts(unfinished)
    return drafts


@dataclass
class _Drafting:
    """A draft that the draft model is extending to `length` tokens."""

    sequence: RunningSequence
    drafter: ModelDrafter
    length: int
    draft: list[int]

    def pending_ids(self) -> list[int]:
        """Return the token ids that are not yet in the draft model's KV cache."""
        start = self.drafter.cache.length
        draft = self.draft[max(0, start - self.sequence.length) :]
        return [*self.sequence.ids_from(start), *draft]


def _extend_drafts(unfinished: Sequence[_Drafting]) -> None:
    """Add a token to each draft, or end it.

    A draft ends at a token id for which the draft model has no embedding. If the sequences have
    several draft models, only the first one proposes tokens.
    """
    model = unfinished[0].drafter.model
    batch, inputs = [], []
    for drafting in unfinished:
        ids = drafting.pending_ids()
        if drafting.drafter.model is model and max(ids) < model.config.vocab_size:
            batch.append(drafting)
            inputs.append(ids)
        else:
            drafting.length = 0
    if not batch:
        return
    caches = [drafting.drafter.cache for drafting in batch]
    with np.errstate(all="ignore"):  # a damaged draft model gives no draft
        logits = model.forward(inputs, caches, logits_indices=last_token_indices(inputs))
    for drafting, row in zip(batch, logits, strict=True):
        token_id = _draft_id(drafting.sequence, drafting.draft, row)
        if token_id is None:
            drafting.length = 0
        else:
            drafting.draft.append(token_id)


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
def _min_probability(n_rows: int, n_sequences: int) -> float:
    """Return the minimum acceptance probability at which further draft tokens can pay off.

    Added to a pass over `n_rows` tokens, draft tokens must yield at least as many tokens as plain
    decoding in the added time.
    """
    costs = [cost / PASS_COSTS[n_rows] - 1 for cost in PASS_COSTS[n_rows + 1 :]]
    return max(0.0, min(n_sequences * cost / r for r, cost in enumerate(costs, 1)))


def _best_count(candidates: Sequence[tuple[float, int, int]], n_rows: int, n_sequences: int) -> int:
    """Return how many `candidates`, draft tokens sorted likeliest first, make decoding fastest."""
    best, n_tokens = 0, float(n_sequences)
    best_speed = _MIN_SPEEDUP * n_tokens / PASS_COSTS[n_rows]
    for count, (negative, _, _) in enumerate(candidates[: MAX_ROWS - n_rows], 1):
        n_tokens -= negative
        if (speed := n_tokens / PASS_COSTS[n_rows + count]) > best_speed:
            best, best_speed = count, speed
    return best
