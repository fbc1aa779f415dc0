"""Draft models: a smaller model with the same vocabulary proposes draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpt2np.kernels.array import common_length
from gpt2np.model import GPT2

_MIN_SPEEDUP = 1.1  # drafts pay off above this ratio of the speeds with and without drafts
_DECAY = 0.85  # each draft multiplies the weight of earlier drafts in the acceptance rate by this
_MAX_TRIES = 32  # drafts


class ModelDraft:
    """A draft model for one sequence; also decides how many draft tokens to propose.

    The recent acceptance rate and the cost of a draft token determine the best draft length. If no
    length pays off, single draft tokens are tried. If that is still so after _MAX_TRIES drafts, the
    sequence gets no more drafts.

    The draft model's context may start later than the target model's.
    """

    def __init__(self, model: GPT2, draft: GPT2) -> None:
        """Propose draft tokens for the target model `model` with the draft model `draft`."""
        self.model = draft
        self.cache = draft.new_cache()
        self.start = 0  # index, in prompt + ids, of the first id in the context
        self._cost = draft.weights.parameters / model.weights.parameters
        self._n_accepted, self._n_tried = 1.2, 2.0  # decaying sums; the start is a prior
        self._n_drafts, self._is_off = 0, False

    def draft_length(self, pass_costs: Sequence[float]) -> int:
        """Return the number of draft tokens to propose for the next forward pass.

        `pass_costs[k]` is the relative time of a pass with k draft tokens; `pass_costs[0]` is 1.
        """
        rate = round(self._n_accepted / self._n_tried, 2)
        best = best_length(rate, tuple(pass_costs), round(self._cost, 3))
        self._is_off |= best == 0 and self._n_drafts >= _MAX_TRIES
        return 0 if self._is_off else max(best, 1)

    def update(self, draft: Sequence[int], new_ids: Sequence[int]) -> None:
        """Compare a draft with the ids then generated; update the acceptance rate."""
        if not draft:
            return
        n_accepted = common_length(draft, new_ids)
        self._n_accepted = self._n_accepted * _DECAY + n_accepted
        self._n_tried = self._n_tried * _DECAY + n_accepted + (n_accepted < len(draft))
        self._n_drafts += 1

    def prepare(self, length: int, draft_length: int) -> None:
        """Prepare the KV cache for a draft of `draft_length` tokens after the first `length` ids.

        Drops rejected draft tokens; restarts from half a context if the draft does not fit.
        """
        n_positions = self.model.config.n_positions
        self.cache.truncate(min(self.cache.length, max(0, length - 1 - self.start)))
        if length - self.start + draft_length > n_positions:
            self.cache.truncate(0)
            self.start = length - n_positions // 2


@lru_cache
def best_length(acceptance_rate: float, pass_costs: tuple[float, ...], token_cost: float) -> int:
    """Return the draft length k that yields the most tokens per second.

    For an acceptance rate a, the speed is (1 + a + … + aᵏ) / (pass_costs[k] + token_cost × k).
    `token_cost` is the cost of a draft token, as a fraction of a pass (Leviathan et al. 2023,
    section 3.3). Returns 0 if the speedup is small, because rate and costs are estimates.
    """
    k = np.arange(len(pass_costs))
    speeds = np.cumsum(acceptance_rate**k) / (np.array(pass_costs) + token_cost * k)
    best = int(np.argmax(speeds))
    return best if speeds[best] > _MIN_SPEEDUP else 0
