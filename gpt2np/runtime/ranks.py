"""The ranks of a process group: how several processes or threads share one forward pass.

A pass over up to SMALL_BATCH tokens is tensor-parallel (Shoeybi et al. 2019, section 3). Each rank
computes some heads, and some output columns of every layer, for all tokens. A longer pass is
context-parallel: each rank computes all layers for some tokens, and reads the keys and values of
all ranks. No sum adds numbers of different ranks, so logits have the same bits as in one process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass
from functools import partial

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import blas
from gpt2np.runtime.batch import MIN_TOKENS_PER_WORKER, PREFILL_CHUNK

COUNTER_STRIDE = 8
"""Distance between the barrier counters of two ranks, in 8-byte integers: one cache line."""

MAX_RANKS = PREFILL_CHUNK // MIN_TOKENS_PER_WORKER
"""More ranks would have nothing to do in any pass."""

_SPIN_LIMIT = 100  # reads of a barrier counter before a waiting rank yields its CPU
_YIELD_S = 0.0002  # seconds of yielding before a waiting rank sleeps
_MAX_SLEEP_S = 0.001
_TIMEOUT_S = 60.0

_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


def has_gil() -> bool:
    """Tell whether Python's threads wait for a global lock, so that ranks must be processes."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def max_processes() -> int:
    """Return how many ranks can share a pass: MAX_RANKS, or 1 where unsupported.

    Several ranks need a BLAS whose threads can be turned off. With a GIL, they are processes, which
    need Linux and an x86 processor, because its cores see each other's writes in order.
    """
    can_fork = sys.platform == "linux" and os.uname().machine == "x86_64"
    return MAX_RANKS if blas() and (can_fork or not has_gil()) else 1


class RankFailedError(Exception):
    """Another rank has ended or does not answer."""


@dataclass
class Rank:
    """One of several processes or threads that run the same pass at the same time.

    Attributes:
        rank: the index of this rank.
        world_size: the number of ranks.
        shared_buffers: yields two flat arrays that all ranks share in turn, each for the widest
            output of SMALL_BATCH tokens.
        barrier_counters: how many barriers each rank has reached, shared by all ranks. The counter
            of a rank is at index rank · COUNTER_STRIDE.
        failure: describes what may be the failure of another rank; "" for none. A rank whose
            barrier has been reached by then has not failed.
    """

    rank: int
    world_size: int
    shared_buffers: Iterator[Array]
    barrier_counters: MutableSequence[int]
    failure: Callable[[], str]

    def barrier(self) -> None:
        """Wait until all ranks have reached this barrier.

        Raises:
            RankFailedError: another rank has ended or does not answer.
        """
        counters, my_place = self.barrier_counters, self.rank * COUNTER_STRIDE
        reached = counters[my_place] + 1
        counters[my_place] = reached
        for counter in range(0, self.world_size * COUNTER_STRIDE, COUNTER_STRIDE):
            if counters[counter] < reached:
                self._wait(counter, reached)

    def _wait(self, counter: int, reached: int) -> None:
        """Spin, then yield the CPU, then sleep, until barrier_counters[counter] ≥ `reached`.

        If another program takes the CPU of a late rank, sleeping gives the late rank this CPU.
        """
        counters = self.barrier_counters
        for _ in range(_SPIN_LIMIT):
            if counters[counter] >= reached:
                return
        seconds, last = 0.0, time.perf_counter()
        while counters[counter] < reached:
            now = time.perf_counter()
            seconds += min(now - last, _MAX_SLEEP_S)  # not the time in which the process is stopped
            last = now
            if seconds < _YIELD_S:
                _yield_cpu()
                continue
            # After the last barrier of a pass, rank 0 may send the next task: that is no failure.
            if (failure := self.failure()) and counters[counter] < reached:
                raise RankFailedError(failure)
            if seconds > _TIMEOUT_S:
                raise RankFailedError(f"another rank has not answered for {_TIMEOUT_S:g} s")
            time.sleep(min(seconds / 10, _MAX_SLEEP_S))

    def output(self, n: int, width: int) -> Array:
        """Return an array (n, width) in the next shared buffer."""
        return next(self.shared_buffers)[: n * width].reshape(n, width)

    def share(self, count: int) -> slice:
        """Return this rank's share of `count` heads or weight panels, a range that may be empty."""
        start, stop = (count * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(start, stop)


ALONE = Rank(0, 1, iter(()), [], lambda: "")  # the only rank of a pass in one process
