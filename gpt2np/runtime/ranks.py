"""The ranks of a process group: how several processes share one forward pass.

A pass over up to SMALL_BATCH tokens is tensor-parallel (Shoeybi et al. 2019, section 3). Each rank
computes some heads, and some output columns of every layer, for all tokens. A longer pass is
context-parallel: each rank computes all layers for some tokens, and reads the keys and values of
all ranks. No sum adds numbers of different ranks, so logits have the same bits as in one process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import blas
from gpt2np.kernels.linear import PackedLinear, linear
from gpt2np.runtime.batch import MIN_TOKENS_PER_WORKER, PREFILL_CHUNK, Batch
from gpt2np.runtime.context import Context

COUNTER_STRIDE = 8
"""Distance between the barrier counters of two ranks, in 8-byte integers: one cache line."""

MAX_RANKS = PREFILL_CHUNK // MIN_TOKENS_PER_WORKER
"""More ranks would have nothing to do in any pass."""

_SPIN_LIMIT = 100  # reads of a barrier counter before a waiting rank yields its CPU
_YIELD_S = 0.0002  # seconds of yielding before a waiting rank sleeps
_MAX_SLEEP_S = 0.001
_TIMEOUT_S = 60.0


def max_processes() -> int:
    """Return how many processes can share a pass: MAX_RANKS, or 1 where unsupported.

    Several processes need Linux and a BLAS whose threads can be turned off. They also need an x86
    processor, because its cores see each other's writes in order.
    """
    is_supported = sys.platform == "linux" and os.uname().machine == "x86_64"
    return MAX_RANKS if is_supported and blas() else 1


class RankFailedError(Exception):
    """Another rank's process has ended or does not answer."""


@dataclass(kw_only=True)
class Rank:
    """One of several processes that run the same pass at the same time.

    Attributes:
        rank: the index of this process.
        world_size: the number of processes.
        shared_buffers: by layer name, shared memory for the layer's output (SMALL_BATCH, columns).
        barrier_counters: how many barriers each rank has reached, in shared memory. The counter of
            a rank is at index rank · COUNTER_STRIDE.
        failure: describes the failure of another rank; "" if no failure is known.
    """

    rank: int
    world_size: int
    shared_buffers: Mapping[str, Array]
    barrier_counters: memoryview
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
                os.sched_yield()
                continue
            if failure := self.failure():
                raise RankFailedError(failure)
            if seconds > _TIMEOUT_S:
                raise RankFailedError(f"another rank has not answered for {_TIMEOUT_S:g} s")
            time.sleep(min(seconds / 10, _MAX_SLEEP_S))

    def share(self, count: int) -> slice:
        """Return this rank's share of `count` heads or weight panels, a range that may be empty."""
        return slice(
            count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size
        )


class TensorParallelContext(Context):
    """A pass in which each rank computes some heads and some output columns, for all tokens.

    All ranks write a layer's output to one shared buffer. The same layer of the next transformer
    block overwrites the buffer.
    """

    def __init__(self, config: GPT2Config, batch: Batch, rank: Rank) -> None:
        super().__init__(config, batch)
        self._rank = rank

    def linear(
        self, x: Array, w: PackedLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Compute this rank's columns of a linear layer, wait for all ranks, return all columns."""
        _, n_panels, _, width = w.panels.shape
        y = self._rank.shared_buffers[w.name][: len(x), : n_panels * width]
        share = self._rank.share(n_panels)
        if share.start < share.stop:
            columns = slice(share.start * width, share.stop * width)
            y[:, columns] = linear(x, w.panel_range(share), then)
        self._rank.barrier()
        return y[:, : w.out_features]

    def unembed(self, x: Array, w: Any) -> Array:
        """Compute this rank's columns of the logits, wait for all ranks, return all columns."""
        return self.linear(x, w)

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Compute attention for this rank's heads, wait for all ranks, return all heads joined."""
        shape = len(x), self._n_head, self._padded_head_size
        z = self._rank.shared_buffers["attn.z"][: len(x)].reshape(shape)
        heads = self._rank.share(self._n_head)
        if heads.start < heads.stop:
            function(heads, z[:, heads].swapaxes(0, 1))
        self._rank.barrier()
        return z[..., : self._head_size].reshape(x.shape)


class ContextParallelContext(Context):
    """A pass in which each rank computes some of the tokens, for all heads and columns."""

    def __init__(self, config: GPT2Config, batch: Batch, rank: Rank) -> None:
        super().__init__(config, batch)
        self._rank = rank

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Compute attention for all heads in one call: ranks then wait only once per layer."""
        z = np.empty((x.shape[0], self._n_head, self._padded_head_size), x.dtype)
        function(slice(0, self._n_head), z.swapaxes(0, 1))
        return z[..., : self._head_size].reshape(x.shape)

    def append_kv(self, heads: slice, keys: Array, values: Array) -> None:
        """Append this rank's keys and values to the KV caches, then wait for the other ranks."""
        super().append_kv(heads, keys, values)
        self._rank.barrier()
