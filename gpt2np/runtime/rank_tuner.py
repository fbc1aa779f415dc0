"""Autotuning of the number of ranks: how many processes share a pass, chosen by timing passes.

The fastest number of ranks depends on the model, the number of rows, and the CPUs' other work. Each
group of passes with similar numbers of rows has its own number of ranks. A trial compares two
numbers, which take turns for blocks of passes.

The caller of this module reads the clock and starts the processes.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.runtime.ranks import MAX_RANKS

ROW_GROUPS = (1, 4, 16, SMALL_BATCH, 256)
"""The largest number of rows of each group of passes; one more group has all longer passes."""

_FIXED_WORK = 8  # a pass over n rows takes about as long as n + 8 units of work
_BLOCK_S = 0.05  # minimum time of a block of passes
_ROUNDS = 3  # blocks of each number of ranks in a trial
_MIN_GAIN = 0.03  # a smaller gain could be noise
_CLEAR_DIFFERENCE = 0.15  # between two numbers of ranks, which ends a trial; or in time: an alarm
_MIN_ALARM_S = 0.3  # minimum time between a trial and an alarm
_MIN_COOLDOWN_S = 1.0  # minimum time between a trial and the next, unless there is an alarm
_MAX_REGRET = 0.02  # the largest share of the time that slower numbers of ranks may cost
_WARM_UP_S = 0.5  # seconds of passes before each further fork; a fork takes about 0.05 s


def useful_ranks(cpus: int, parts: int) -> list[int]:
    """Return the numbers of ranks that are worth a trial: about 1, 2, 4, … up to `cpus`.

    The ranks share `parts` equal parts of the work. For 12 parts and 8 CPUs, the numbers are 1, 2,
    4 and 6. With 8 ranks, the busiest rank would have two parts, as with 6.
    """
    numbers = [1]
    while True:
        busiest = -(-parts // min(2 * numbers[-1], cpus, parts))
        if (n_ranks := -(-parts // busiest)) == numbers[-1]:
            return numbers
        numbers.append(n_ranks)


@dataclass
class _Trial:
    """An A/B test of the current number of ranks against another number, the challenger."""

    challenger: int
    rounds: int  # how many blocks of passes the challenger gets
    current_times: list[float]  # of blocks, per unit of work
    regret: float  # seconds that passes have taken longer than expected
    challenger_times: list[float] = field(default_factory=list)

    @property
    def is_challengers_turn(self) -> bool:
        return len(self.challenger_times) < len(self.current_times)

    @property
    def gain(self) -> float:
        """The share of time that the number of ranks on trial saves; negative if it is slower."""
        # Stalls affect a mean, but not a median. They count against the challenger only, because
        # more ranks stall more often.
        return 1 - float(np.mean(self.challenger_times) / np.median(self.current_times))

    @property
    def is_over(self) -> bool:
        n_blocks = len(self.challenger_times)
        return n_blocks > 0 and (n_blocks == self.rounds or self.gain < -_CLEAR_DIFFERENCE)


class _Group:
    """Tunes the number of ranks (processes) for passes over similar numbers of tokens."""

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = candidates  # numbers of ranks, ascending
        self.ranks = 1  # the current number of ranks
        self.times: dict[int, float] = {}  # the last time per unit of work, by number of ranks
        self._work = 0  # of the last pass
        self._trial: _Trial | None = None
        self._passes: list[tuple[int, float]] = []  # work and seconds of each pass of the block
        self._recent: deque[float] = deque(maxlen=4)  # times of blocks with the current number
        self._since_trial = 0.0  # seconds of passes
        self._cooldown = 0.0  # seconds of passes between the last trial and the next
        self._last_rejected = 0  # the number of ranks that lost the last trial

    @property
    def seconds(self) -> dict[int, float]:
        """Number of ranks → estimated time of a pass over as many tokens as the last pass."""
        return {ranks: time * self._work for ranks, time in sorted(self.times.items())}

    def choose(self, affordable: int) -> int:
        """Return the number of ranks for the next pass; trials test at most `affordable` ranks."""
        if self._trial is None and self._recent and not self._passes:
            self._trial = self._next_trial(affordable)
        trial = self._trial
        return trial.challenger if trial and trial.is_challengers_turn else self.ranks

    def _next_trial(self, affordable: int) -> _Trial | None:
        # The mean of recent blocks without the slowest, which may contain a stall.
        time = float(np.mean(sorted(self._recent)[:-1] or self._recent))
        expected = self.times.setdefault(self.ranks, time)
        slowdown = 1 - expected / time
        is_alarm = slowdown > _CLEAR_DIFFERENCE and self._since_trial >= _MIN_ALARM_S
        challengers = [ranks for ranks in self._adjacent() if ranks <= affordable]
        if not challengers or (self._since_trial < self._cooldown and not is_alarm):
            return None
        challengers.sort(key=lambda ranks: (ranks in self.times, ranks == self._last_rejected))
        regret = is_alarm * slowdown * _MIN_ALARM_S  # at least that long, passes were too slow
        return _Trial(challengers[0], 1 if is_alarm else _ROUNDS, [time], regret)

    def _adjacent(self) -> list[int]:
        """Return the next larger and the next smaller number of ranks to try, if any."""
        i = self.candidates.index(self.ranks)
        return [*self.candidates[i + 1 : i + 2], *self.candidates[max(0, i - 1) : i]]

    @property
    def is_settled(self) -> bool:
        """Whether no trial runs, and the next larger and smaller numbers of ranks were timed."""
        return self._trial is None and all(ranks in self.times for ranks in self._adjacent())

    def record(self, n_rows: int, n_ranks: int, seconds: float) -> float:
        """Record the time of a pass, and return `seconds`; ignore the first pass, and return 0."""
        is_first, self._work = not self._work, _FIXED_WORK + n_rows
        if is_first:
            return 0.0  # packs the weights, or touches memory for the first time
        trial = self._trial
        self._since_trial += seconds
        self._passes.append((self._work, seconds))
        if trial and n_ranks != self.ranks:
            trial.regret += seconds - self._work * trial.current_times[-1]
        if sum(time for _, time in self._passes) >= _BLOCK_S:
            # In a trial, the first of several passes wakes ranks up, or reads cold memory.
            counted = self._passes[1:] if trial and len(self._passes) > 1 else self._passes
            time = sum(time for _, time in counted) / sum(work for work, _ in counted)
            self._passes = []
            if trial is None:
                self._recent.append(time)
            else:
                is_challenger = trial.is_challengers_turn
                (trial.challenger_times if is_challenger else trial.current_times).append(time)
                if trial.is_over:
                    self._decide(trial)
        return seconds

    def _decide(self, trial: _Trial) -> None:
        self.times[self.ranks] = float(np.median(trial.current_times))
        self.times[trial.challenger] = float(np.mean(trial.challenger_times))
        self._last_rejected, winners_times = trial.challenger, trial.current_times
        if trial.gain > _MIN_GAIN:
            self.ranks, self._last_rejected = trial.challenger, self.ranks
            winners_times = trial.challenger_times
        self._recent = deque(winners_times, maxlen=4)
        self._trial, self._since_trial = None, 0.0
        self._cooldown = max(_MIN_COOLDOWN_S, trial.regret / _MAX_REGRET)


@dataclass(frozen=True)
class RankChoice:
    """The current number of ranks for passes over `min_rows` to `max_rows` rows (tokens).

    Attributes:
        min_rows, max_rows: the numbers of rows; `max_rows` is None if there is no upper limit.
        ranks: the number of ranks.
        seconds: number of ranks → measured time, scaled to the number of rows of the last pass.
        is_settled: whether no A/B test runs, and the next lower and higher numbers were timed.
    """

    min_rows: int
    max_rows: int | None
    ranks: int
    seconds: dict[int, float]
    is_settled: bool


class RankTuner:
    """Chooses the number of ranks (processes) of each pass by the times of earlier passes."""

    def __init__(self, cpus: int, n_head: int) -> None:
        """Use at most `cpus` ranks, and in short passes at most `n_head`."""
        # In a short pass, ranks share the heads. The smallest layer has about as many panels.
        short, long = useful_ranks(cpus, n_head), useful_ranks(cpus, MAX_RANKS)
        self._groups = [
            _Group(short if rows <= SMALL_BATCH else long) for rows in (*ROW_GROUPS, sys.maxsize)
        ]
        self._seconds = 0.0

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks that `choose` may return."""
        return max(group.candidates[-1] for group in self._groups)

    def choose(self, n_rows: int, n_forked: int) -> int:
        """Return the number of ranks for a pass over `n_rows` tokens; `n_forked` ranks exist."""
        affordable = max(n_forked, 1 + int(self._seconds / _WARM_UP_S))
        return self._group(n_rows).choose(affordable)

    def record(self, n_rows: int, n_ranks: int, seconds: float) -> None:
        """Record the time of a pass on `n_ranks` ranks."""
        self._seconds += self._group(n_rows).record(n_rows, n_ranks, seconds)

    def _group(self, n_rows: int) -> _Group:
        return self._groups[bisect_left(ROW_GROUPS, n_rows)]

    def choices(self) -> list[RankChoice]:
        """Return the current choice for each range of pass lengths in which a pass was timed."""
        firsts = (1, *(rows + 1 for rows in ROW_GROUPS))
        return [
            RankChoice(first, last, group.ranks, group.seconds, group.is_settled)
            for first, last, group in zip(firsts, (*ROW_GROUPS, None), self._groups, strict=True)
            if group.seconds
        ]
