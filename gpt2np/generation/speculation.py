"""Speculative decoding: several tokens per forward pass. The generated text stays the same.

Draft tokens come from n-grams (`drafts`). The model computes the logits at all draft tokens in one
pass. At each position, a token is selected from these logits,
with the random number that decoding without drafts would use. Draft tokens are accepted up to the
first that differs from the selected token. This is the verification of Leviathan et al. 2023 for a
deterministic draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gpt2np.generation.drafts import MAX_ROWS, PASS_COSTS
from gpt2np.generation.sequence import RunningSequence

_MIN_SPEEDUP = 1.02  # relative to no drafts; pays for the search


def propose_drafts(batch: Sequence[RunningSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence, as many as should pay off.

    A pass with draft tokens has at most `MAX_ROWS` tokens, each sequence's last token included. A
    batch with a prompt gets no drafts: its pass is compute-bound, so drafts would cost time.
    """
    drafts: list[list[int]] = [[] for _ in batch]
    if len(batch) >= MAX_ROWS or any(s.n_pending > 1 or s.scores_prompt for s in batch):
        return drafts
    candidates: list[tuple[float, int, int]] = []  # -probability, length of the draft, sequence
    min_probability = _min_probability(len(batch))
    for i, sequence in enumerate(batch):
        length = min(MAX_ROWS - len(batch), sequence.tokens_left)
        if sequence.drafter and length > 0:
            drafts[i], probabilities = sequence.drafter.propose(
                sequence.request.ids, sequence.ids, length, min_probability, sequence.vocab_size
            )
            candidates += [(-p, k, i) for k, p in enumerate(probabilities, 1)]
    candidates.sort()
    lengths = {i: length for _, length, i in candidates[: _best_count(candidates, len(batch))]}
    return [draft[: lengths.get(i, 0)] for i, draft in enumerate(drafts)]


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
