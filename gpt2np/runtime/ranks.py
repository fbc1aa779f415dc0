"""The ranks of a process group: how several processes share one forward pass.

Up to SMALL_BATCH tokens run tensor-parallel: each rank computes some heads, and some output columns
of every layer, for all tokens (Shoeybi et al. 2019, section 3). More tokens run context-parallel:
each rank computes all layers for some of the tokens, and reads the keys and values of the other
ranks' tokens. No sum spans ranks, so the bits are those of a single rank.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import blas
from gpt2np.kernels.linear import PackedLinear, linear
from gpt2np.kernels.threads import thread_count
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.context import Context

COUNTER_STRIDE = 8
"""Counters of two ranks are this many apart, to lie in different cache lines."""

_SPIN_LIMIT = 100  # looks at a counter before the rank yields its CPU
_TIMEOUT_S = 60.0


def max_processes() -> int:
    """Return how many processes can share a pass: one per thread in use, or 1 where unsupported.

    Ranks need Linux, a BLAS whose threads can be turned off, and an x86 processor, whose cores see
    each other's writes in order.
    """
    is_supported = sys.platform == "linux" and os.uname().machine == "x86_64"
    return thread_count() if is_supported and blas() else 1


class RankFailedError(Exception):
    """Another rank's process has ended or does not answer."""


@dataclass(kw_only=True)
class Rank:
    """One of several processes that run the same pass at the same time.

    Attributes:
        rank, world_size: the index of this process, and the number of processes.
        shared_buffers: layer name → (SMALL_BATCH, columns), for the outputs of all ranks.
        barrier_counters: how many barriers each rank has reached, COUNTER_STRIDE apart; shared.
        has_failed: tells whether another rank is known to have ended.
    """

    rank: int
    world_size: int
    shared_buffers: Mapping[str, Array]
    barrier_counters: memoryview
    has_failed: Callable[[], bool]

    def barrier(self) -> None:
        """Wait until all ranks have reached as many barriers.

        Raises:
            RankFailedError: another rank has ended or does not answer.
        """
        counter_of_rank = self.rank * COUNTER_STRIDE
        reached = self.barrier_counters[counter_of_rank] + 1
        self.barrier_counters[counter_of_rank] = reached
        for counter in range(0, self.world_size * COUNTER_STRIDE, COUNTER_STRIDE):
            looks = 0
            while self.barrier_counters[counter] < reached:
                looks += 1
                if looks > _SPIN_LIMIT:
                    self._wait(counter, reached)

    def _wait(self, counter: int, reached: int) -> None:
        start = time.thread_time()  # stands still while the processes are stopped
        while self.barrier_counters[counter] < reached:
            os.sched_yield()
            if self.has_failed():
                raise RankFailedError("another rank's process has ended")
            if time.thread_time() - start > _TIMEOUT_S:
                raise RankFailedError(f"another rank has not answered for {_TIMEOUT_S:g} s")

    def share(self, count: int) -> slice:
        """Return this rank's share of `count` columns or heads, possibly empty."""
        return slice(
            count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size
        )


class TensorParallelContext(Context):
    """A pass in which each rank computes some heads and some output columns, for all tokens.

    Outputs go to buffers that all ranks see. An output lasts until the layer of the same name runs
    again.
    """

    def __init__(self, config: GPT2Config, batch: Batch, rank: Rank) -> None:
        super().__init__(config, batch)
        self._rank = rank

    def linear(
        self, x: Array, w: PackedLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Compute this rank's output columns; return the columns of all ranks."""
        _, n_panels, _, width = w.panels.shape
        y = self._rank.shared_buffers[w.name][: len(x), : n_panels * width]
        share = self._rank.share(n_panels)
        if share.start < share.stop:
            columns = slice(share.start * width, share.stop * width)
            bias = None if w.bias is None else w.bias[columns]
            part = linear(x, w.panels[:, share], bias)
            y[:, columns] = then(part) if then else part
        self._rank.barrier()
        return y[:, : w.out_features]

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Compute this rank's heads; return the heads of all ranks."""
        shape = len(x), self._n_head, self._padded_head_size
        z = self._rank.shared_buffers["attn.z"][: len(x)].reshape(shape)
        heads = self._rank.share(self._n_head)
        if heads.start < heads.stop:
            function(heads, z[:, heads].swapaxes(0, 1))
        self._rank.barrier()
        return self._join_heads(z)


class ContextParallelContext(Context):
    """A pass in which each rank computes some of the tokens, for all heads and columns."""

    def __init__(self, config: GPT2Config, batch: Batch, rank: Rank) -> None:
        super().__init__(config, batch)
        self._rank = rank

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Compute all heads at once, so that ranks meet only once per layer."""
        z = np.empty((x.shape[0], self._n_head, self._padded_head_size), x.dtype)
        function(slice(0, self._n_head), z.swapaxes(0, 1))
        return self._join_heads(z)

    def append_kv(self, heads: slice, keys: Array, values: Array) -> None:
        """Append this rank's keys and values, then wait for those of all ranks."""
        super().append_kv(heads, keys, values)
        self._rank.barrier()
