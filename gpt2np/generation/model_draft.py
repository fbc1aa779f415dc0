"""Draft models: a smaller model with the same vocabulary proposes draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpt2np.kernels.array import common_length
from gpt2np.model import GPT2

_MIN_SPEEDUP = 1.1  # drafts pay off above this ratio of the speeds with and without drafts
_DECAY = 0.85  # each draft multiplies the weight of earlier drafts in the acceptance rate by this
_SHORT_CONTEXT = 8  # context in tokens of a draft model whose drafts do not pay off


class ModelDraft:
    """A draft model for one sequence; also decides how many draft tokens to propose.

    The recent acceptance rate and the cost of a draft token determine the best draft length. If no
    length pays off, a single draft token is tried after a pause of several steps. Each rejected
    draft token lengthens the pause.

    The draft model's context may start later than the target model's.
    """

    def __init__(self, model: GPT2, draft: GPT2) -> None:
        """Propose draft tokens for the target model `model` with the draft model `draft`."""
        self.model = draft
        self.cache = draft.new_cache()
        self.start = 0  # index, in prompt + ids, of the first id in the context
        self.pays_off = True  # whether the last draft was expected to pay off
        self._has_full_context = False
        self._cost = draft.weights.parameters / model.weights.parameters
        self._n_accepted, self._n_tried = 1.2, 2.0  # decaying sums; the start is a prior
        self._pause = self._n_paused = 2

    def draft_length(self, pass_costs: Sequence[float]) -> int:
        """Return the number of draft tokens to propose for the next forward pass.

        `pass_costs[k]` is the relative time of a pass with k draft tokens; `pass_costs[0]` is 1.
        """
        rate = round(self._n_accepted / self._n_tried, 2)
        best = best_length(rate, tuple(pass_costs), round(self._cost, 3))
        self.pays_off = best > 0
        if not self.pays_off:
            self._n_paused += 1
            return int(self._n_paused > self._pause)
        return best

    def update(self, draft: Sequence[int], new_ids: Sequence[int]) -> None:
        """Compare a draft with the ids then generated; update the acceptance rate."""
        if not draft:
            return
        n_accepted = common_length(draft, new_ids)
        self._n_accepted = self._n_accepted * _DECAY + n_accepted
        self._n_tried = self._n_tried * _DECAY + n_accepted + (n_accepted < len(draft))
        if not self.pays_off:
            self._pause = min(256, 4 * self._pause + 4) if n_accepted == 0 else self._pause // 4
            self._n_paused = 0

    def prepare(self, length: int, draft_length: int, full_context: bool) -> None:
        """Prepare the KV cache for a draft of `draft_length` tokens after the first `length` ids.

        Drops rejected draft tokens, and shortens the context if the draft does not fit. Without
        `full_context`, the model reads only the last few ids: the draft is unlikely to pay off.
        """
        n_positions = self.model.config.n_positions
        self.cache.truncate(min(self.cache.length, max(0, length - 1 - self.start)))
        n_pending = length - self.start - self.cache.length
        if full_context and not self._has_full_context:
            self._restart(length - (n_positions - draft_length))
            self._has_full_context = True
        elif not full_context and n_pending > _SHORT_CONTEXT:
            self._restart(length - min(_SHORT_CONTEXT, n_positions - draft_length))
            self._has_full_context = False
        if length - self.start + draft_length > n_positions:
            self._restart(length - n_positions // 2)

    def _restart(self, start: int) -> None:
        self.cache.truncate(0)
        self.start = max(0, start)


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
