"""Run something several times, and keep the seconds of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The seconds that each of several runs of the same work took."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds of the middle run: what one may expect."""
        return median(self.runs)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest run: what others on the machine disturbed least."""
        return min(self.runs)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest run."""
        return max(self.runs)


@dataclass(frozen=True)
class Effort:
    """How often to repeat: at least `runs` times, and on until `seconds` have passed."""

    runs: int
    seconds: float


def seconds_of(work: Work) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def repeat(work: Work, effort: Effort) -> Timing:
    """Time `work` again and again."""
    end = time.perf_counter() + effort.seconds
    runs: list[float] = []
    while len(runs) < effort.runs or time.perf_counter() < end:
        runs.append(seconds_of(work))
    return Timing(tuple(runs))


def alternate(works: Sequence[Work], rounds: int, effort: Effort) -> list[Timing]:
    """Time several works that are to be compared, in turns, so that disturbances hit all alike.

    `effort` is for one turn. The first run of a turn is not counted: it finds the caches, and the
    threads, as the work before has left them.
    """
    runs: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seconds in zip(works, runs, strict=True):
            work()
            seconds += repeat(work, effort).runs
    return [Timing(tuple(seconds)) for seconds in runs]
