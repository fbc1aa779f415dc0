"""The number of ranks of each pass, chosen by the times of earlier passes.

The number doubles while that saves time, separately for passes over similar numbers of rows. Later
trials go up or down again, and down at once if passes have become slower.
"""

from __future__ import annotations

from bisect import bisect_left

from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.runtime.ranks import MAX_RANKS

_ROW_GROUPS = (1, 4, 16, SMALL_BATCH, 256)  # most rows of similar passes; longer ones are alike
_FIXED_WORK = 8  # a pass over n rows takes about as long as n + 8 units of work
_BLOCK_S = 0.06  # minimum time of the passes that measure one number of ranks
_MIN_PASSES = 4  # of a block, unless its passes are long
_MIN_GAIN = 0.03  # a smaller share of the time could be noise
_MAX_LOSS = 0.1  # twice as many ranks may pay off where a number loses less than this share
_SLOWDOWN = 1.15  # of passes, after which fewer ranks are tried
_PAUSE_S = 0.3  # minimum time of passes before the first trial, and before one for a slowdown
_MIN_INTERVAL_S = 1.0  # minimum time of passes between other trials
_MAX_COST = 0.02  # the largest share of the time that trials of slower numbers may cost


class RankChoice:
    """The number of ranks of passes over similar numbers of rows, and that of the next pass."""

    def __init__(self, candidates: list[int]) -> None:
        self.ranks = self.next_ranks = 1
        self._candidates, self._step = candidates, 1  # 1 if the next trial has more ranks, or -1
        self._times: dict[int, float] = {}  # seconds per unit of work, by number of ranks
        self._block: list[float] = []  # times of passes with `next_ranks` ranks
        self._block_s, self._since_trial, self._interval = 0.0, 0.0, _PAUSE_S

    def record(self, n_rows: int, seconds: float) -> None:
        """Record the time of a pass with `next_ranks` ranks."""
        self._block.append(seconds / (n_rows + _FIXED_WORK))
        self._block_s += seconds
        self._since_trial += seconds
        n_passes = len(self._block)
        if self._block_s >= _BLOCK_S and (n_passes >= _MIN_PASSES or self._block_s > 3 * _BLOCK_S):
            usual = sorted(self._block)[:-1] or self._block  # the slowest may contain a stall
            self._compare(sum(usual) / len(usual))
            self._block, self._block_s = [], 0.0

    def _compare(self, time: float) -> None:
        """Begin a trial if it is time for one; end a trial if its number is no faster."""
        before = self._times.get(self.ranks, time)
        self._times[self.next_ranks] = time
        if self.next_ranks == self.ranks:
            is_slower = time > _SLOWDOWN * before and self._since_trial > _PAUSE_S
            is_due = self._since_trial > self._interval
            if is_slower or (is_due and not self._can_step()):
                self._step = -1 if is_slower else -self._step
            goes_on = is_slower or is_due
        else:
            is_faster = time < (1 - _MIN_GAIN) * before
            goes_on = is_faster or (self._step > 0 and time < (1 + _MAX_LOSS) * before)
            self.ranks = self.next_ranks if is_faster else self.ranks
            if not (goes_on and self._can_step()):
                loss = self._block_s * (1 - before / time)
                self._interval = max(_MIN_INTERVAL_S, loss / _MAX_COST)
                self.next_ranks, self._step, self._since_trial = self.ranks, -self._step, 0.0
                return
        if goes_on and self._can_step():
            self.next_ranks = self._candidates[self._candidates.index(self.next_ranks) + self._step]

    def _can_step(self) -> bool:
        i = self._candidates.index(self.next_ranks) + self._step
        return 0 <= i < len(self._candidates)


class RankTuner:
    """The choices of one model, which use at most `cpus` ranks."""

    def __init__(self, cpus: int, n_head: int) -> None:
        # In a short pass, ranks share the heads. The smallest layer has about as many panels.
        limits = [min(cpus, n_head)] * 4 + [min(cpus, MAX_RANKS)] * 2
        self._choices = [
            RankChoice([*(n for n in (1, 2, 4, 8, 16, 32) if n < limit), limit]) for limit in limits
        ]
        self.max_ranks = max(limits)

    def choice(self, n_rows: int) -> RankChoice:
        """Return the choice for passes over `n_rows` rows."""
        return self._choices[bisect_left(_ROW_GROUPS, n_rows)]
