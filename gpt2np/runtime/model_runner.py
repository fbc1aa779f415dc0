"""Execution of a model's forward pass in one process, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads, single_threaded_blas
from gpt2np.kernels.matmul import MIN_SHARED_WORK, SMALL_BATCH
from gpt2np.runtime.batch import PREFILL_CHUNK, make_batches
from gpt2np.runtime.context import (
    BatchContext,
    Context,
    ContextParallelContext,
    Hook,
    TensorParallelContext,
)
from gpt2np.runtime.kv_cache import KVCache
from gpt2np.runtime.ranks import ALONE, Rank


@dataclass(frozen=True)
class ModelRunner:
    """A model's forward function, context → logits (R, V), and its context in one process.

    Every array of a pass has `dtype`.
    """

    function: Callable[[BatchContext[Any]], Array]
    config: GPT2Config
    dtype: np.dtype[Any]
    context: type[BatchContext[Any]] = Context

    def run(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        hook: Hook | None = None,
        rank: Rank = ALONE,
    ) -> Array:
        """Run the new tokens of `sequences`; return the logits (R, V) of tokens `logits_indices`.

        The caches get the tokens' keys and values, and must have capacity for them. The arguments
        must be valid. Of several ranks, this process computes only the share of `rank`. The logits
        are then in shared memory, which the next pass overwrites.
        """
        counts, is_shared = list(map(len, sequences)), rank.world_size > 1
        n_tokens = sum(counts)
        is_prompt = hook is None and n_tokens > SMALL_BATCH
        context, logits = self.context, None
        if is_shared:
            context = ContextParallelContext if is_prompt else TensorParallelContext
        if is_prompt and (is_shared or n_tokens > PREFILL_CHUNK):
            shape = len(logits_indices), self.config.vocab_size
            logits = rank.output(*shape) if is_shared else np.empty(shape, self.dtype)
        n_workers = None if hook is not None else self._n_workers(counts, caches, rank)
        with single_threaded_blas():
            for batch in make_batches(sequences, caches, logits_indices, n_workers):
                if is_shared and is_prompt:
                    batch = batch.share_of(rank.rank, rank.world_size)
                result = self.function(context(self.config, batch, hook, rank))
                for cache, n in zip(batch.caches, batch.counts, strict=True):
                    cache.length += n
                if logits is None:
                    return result
                logits[batch.logits_mask] = result
                if is_shared:
                    rank.barrier()
        assert logits is not None
        return logits

    def _n_workers(self, counts: Sequence[int], caches: Sequence[KVCache], rank: Rank) -> int:
        """Return how many threads or ranks share the attention of a pass."""
        if sum(counts) > SMALL_BATCH:
            return rank.world_size if rank.world_size > 1 else python_threads()
        n_scores = sum(n * (n + c.length) for n, c in zip(counts, caches, strict=True))
        is_small = 2 * n_scores * self.config.n_embd < MIN_SHARED_WORK  # of one layer
        return 1 if is_small or rank.world_size > 1 else python_threads()
