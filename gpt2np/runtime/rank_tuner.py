"""The number of ranks of each pass, found by measurement.

How many ranks are fastest depends on the model, the number of rows, and the other programs that
need the CPUs at the moment. Therefore passes are timed. Passes with similar numbers of rows form a
group, with its own choice. A trial compares two numbers of ranks in turns, in blocks of passes.

This module only counts: it neither reads a clock nor starts a process.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.runtime.ranks import MAX_RANKS

ROW_GROUPS = (1, 4, 16, SMALL_BATCH, 256)
"""The largest number of rows of each group of passes. The last group has all longer passes."""

_FIXED_WORK = 8  # a pass over n rows takes about as long as n + 8 units of work
_BLOCK_S = 0.05  # a block of passes takes at least this time
_ROUNDS = 3  # blocks of each number of ranks in a trial
_MIN_GAIN = 0.03  # a smaller gain could be noise
_CLEAR_LOSS = 0.15  # a trial ends as soon as the challenger loses this share of the time
_ALARM = 0.15  # when passes have become slower by this share, a trial starts early
_MIN_ALARM_S = 0.3  # but not sooner after another trial
_MAX_COST = 0.02  # the largest share of the time that trials may cost
_WARM_UP_S = 0.5  # the time of all passes before the first fork, which takes about 0.05 s
_MIN_HOLD_S, _MAX_HOLD_S = 1.0, 60.0  # the time in passes between two trials of a challenger


def useful_ranks(cpus: int, parts: int) -> list[int]:
    """Return the numbers of ranks that are worth a trial: about 1, 2, 4, … up to `cpus`.

    The work has `parts` equal parts. Each number is reduced to the fewest ranks that give the
    busiest rank as few parts.
    """
    numbers = [1]
    while True:
        busiest = -(-parts // min(2 * numbers[-1], cpus, parts))
        if (n_ranks := -(-parts // busiest)) == numbers[-1]:
            return numbers
        numbers.append(n_ranks)


@dataclass
class _Trial:
    """A comparison of the challenger, another number of ranks, with the current number.

    Attributes:
        challenger: the number of ranks on trial.
        rounds: the number of the challenger's blocks.
        current: the times of blocks with the current number of ranks, per unit of work.
        found: the times of the challenger's blocks, per unit of work.
        excess: how many seconds longer the challenger's passes have taken.
    """

    challenger: int
    rounds: int
    current: list[float]
    found: list[float] = field(default_factory=list)
    excess: float = 0.0

    @property
    def is_challengers_turn(self) -> bool:
        return len(self.found) < len(self.current)

    @property
    def gain(self) -> float:
        """The share of the time that the challenger saves; negative if the challenger is slower.

        A stall counts against the challenger only: more ranks stall more often.
        """
        return 1 - float(np.mean(self.found) / np.median(self.current))

    @property
    def is_over(self) -> bool:
        return bool(self.found) and (len(self.found) == self.rounds or self.gain < -_CLEAR_LOSS)


class _Group:
    """The choice for passes with similar numbers of rows.

    Times are per unit of work, because passes of a group differ in their rows.

    Attributes:
        ladder: the numbers of ranks that can be chosen, ascending.
        ranks: the number of ranks that is used at present.
        times: the last measured time for each number of ranks.
    """

    def __init__(self, ladder: Sequence[int]) -> None:
        self.ladder = ladder
        self.ranks = 1
        self.times: dict[int, float] = {}
        self._work = 0  # of the last pass
        self._trial: _Trial | None = None
        self._passes: list[tuple[int, float]] = []  # work and seconds of each pass of the block
        self._recent: deque[float] = deque(maxlen=4)  # blocks of the current number of ranks
        self._expected = math.inf  # the current number's time at the last decision
        self._since_trial = 0.0  # seconds of passes
        self._rest = 0.0  # seconds of passes until the last trial has cost less than _MAX_COST
        self._hold: dict[int, float] = {}  # how often each challenger gets a trial, in seconds
        self._loser = 0  # of the last trial

    @property
    def seconds(self) -> dict[int, float]:
        """For each number of ranks, the time of a pass with as much work as the last pass."""
        return {ranks: time * self._work for ranks, time in sorted(self.times.items())}

    def choose(self, affordable: int) -> int:
        """Return the number of ranks for the next pass, which may be at most `affordable`."""
        if self._trial is None and self._recent and not self._passes:
            self._trial = self._next_trial(affordable)
        trial = self._trial
        return trial.challenger if trial and trial.is_challengers_turn else self.ranks

    def _next_trial(self, affordable: int) -> _Trial | None:
        if self._since_trial < self._rest:
            return None
        level = self._level()
        alternatives = [ranks for ranks in self.times if ranks != self.ranks]
        if alternatives and self._since_trial >= _MIN_ALARM_S:
            fastest = min(alternatives, key=self.times.__getitem__)
            limit = max((1 + _ALARM) * self._expected, (1 + _MIN_GAIN) * self.times[fastest])
            if level > limit:
                return _Trial(fastest, 1, [level])
        due = [
            ranks
            for ranks in self._neighbours()
            if ranks <= affordable and self._since_trial >= self._hold.get(ranks, 0)
        ]
        due.sort(key=lambda ranks: (ranks in self.times, ranks == self._loser))
        return _Trial(due[0], _ROUNDS, [level]) if due else None

    def _neighbours(self) -> list[int]:
        """Return the next larger and the next smaller number of ranks."""
        place = self.ladder.index(self.ranks)
        return [*self.ladder[place + 1 : place + 2], *self.ladder[max(0, place - 1) : place]]

    @property
    def is_settled(self) -> bool:
        """Whether no trial runs, and the next lower and higher numbers of ranks were measured."""
        return self._trial is None and all(ranks in self.times for ranks in self._neighbours())

    def _level(self) -> float:
        """Return the recent time of the current number of ranks, without the slowest block.

        A single stall is no reason to change the number of ranks.
        """
        times = sorted(self._recent)
        return float(np.mean(times[:-1] or times))

    def record(self, n_rows: int, n_ranks: int, seconds: float) -> float:
        """Learn from a pass on `n_ranks` ranks. Return `seconds`, or 0 for the first pass."""
        is_first, self._work = not self._work, _FIXED_WORK + n_rows
        if is_first:
            return 0.0  # packs the weights, or touches memory for the first time
        trial = self._trial
        self._since_trial += seconds
        self._passes.append((self._work, seconds))
        if trial and n_ranks != self.ranks:
            trial.excess += seconds - self._work * trial.current[-1]
        if sum(time for _, time in self._passes) >= _BLOCK_S:
            # In a trial, the first of several passes wakes ranks up, or reads cold memory.
            counted = self._passes[1:] if trial and len(self._passes) > 1 else self._passes
            time = sum(time for _, time in counted) / sum(work for work, _ in counted)
            self._passes = []
            self._end_block(time)
        return seconds

    def _end_block(self, time: float) -> None:
        trial = self._trial
        if trial is None:
            self._recent.append(time)
            self.times[self.ranks] = self._level()
            return
        (trial.found if trial.is_challengers_turn else trial.current).append(time)
        if trial.is_over:
            self._decide(trial)

    def _decide(self, trial: _Trial) -> None:
        current = self.ranks
        self._trial, self._since_trial = None, 0.0
        self._rest = trial.excess / _MAX_COST
        self.times[current] = float(np.median(trial.current))
        self.times[trial.challenger] = float(np.mean(trial.found))
        self._hold.setdefault(trial.challenger, _MIN_HOLD_S)
        self._hold.setdefault(current, _MIN_HOLD_S)
        is_alarm = trial.rounds == 1
        if trial.gain > _MIN_GAIN:
            self.ranks, self._loser = trial.challenger, current
            self._recent = deque(trial.found, maxlen=4)
            if is_alarm:  # a trial had promised more
                self._hold[current] = min(_MAX_HOLD_S, 2 * self._hold[current])
        else:
            self._loser = trial.challenger
            self._recent = deque(trial.current, maxlen=4)
            if not is_alarm:  # it has kept what its trial promised
                self._hold[current] = _MIN_HOLD_S
        self._expected = self.times[self.ranks]


@dataclass(frozen=True)
class RankChoice:
    """The number of ranks that passes with `min_rows` to `max_rows` rows use at present.

    Attributes:
        min_rows, max_rows: the numbers of rows; None without an upper limit.
        ranks: the number of ranks.
        seconds: the measured time for each number of ranks, scaled to the number of rows of the
            last pass.
        is_settled: whether all numbers of ranks that could be better have been measured.
    """

    min_rows: int
    max_rows: int | None
    ranks: int
    seconds: dict[int, float]
    is_settled: bool


class RankTuner:
    """Chooses the number of ranks of each pass, and learns from the times of the passes."""

    def __init__(self, cpus: int, n_head: int) -> None:
        """Set the largest numbers of ranks.

        Args:
            cpus: the number of CPU cores.
            n_head: the number of attention heads, which ranks share in a short pass. The smallest
                layer has about as many panels.
        """
        short, long = useful_ranks(cpus, n_head), useful_ranks(cpus, MAX_RANKS)
        self._groups = [
            _Group(short if rows <= SMALL_BATCH else long) for rows in (*ROW_GROUPS, sys.maxsize)
        ]
        self._seconds = 0.0

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks that `choose` may return."""
        return max(max(group.ladder) for group in self._groups)

    def choose(self, n_rows: int, n_forked: int) -> int:
        """Return the number of ranks for a pass over `n_rows` rows; `n_forked` ranks exist."""
        affordable = max(n_forked, 1 + int(self._seconds / _WARM_UP_S))
        return self._group(n_rows).choose(affordable)

    def record(self, n_rows: int, n_ranks: int, seconds: float) -> None:
        """Learn from the time of a pass."""
        self._seconds += self._group(n_rows).record(n_rows, n_ranks, seconds)

    def _group(self, n_rows: int) -> _Group:
        return self._groups[bisect_left(ROW_GROUPS, n_rows)]

    def choices(self) -> list[RankChoice]:
        """Return the choice for each group of which passes were measured."""
        return [
            RankChoice(first, last, group.ranks, group.seconds, group.is_settled)
            for first, last, group in zip(
                (1, *(rows + 1 for rows in ROW_GROUPS)),
                (*ROW_GROUPS, None),
                self._groups,
                strict=True,
            )
            if group.seconds
        ]
