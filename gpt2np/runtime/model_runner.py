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
from gpt2np.runtime.batch import PREFILL_CHUNK, Batch, make_batches
from gpt2np.runtime.context import BatchContext, Context, Hook, Hooked, HookedContext
from gpt2np.runtime.kv_cache import KVCache
from gpt2np.runtime.ranks import ContextParallelContext, Rank, TensorParallelContext


@dataclass(frozen=True)
class ModelRunner:
    """A model's forward function, context → logits (R, V), and the contexts without and with hooks.

    Every array of a pass has `dtype`.
    """

    function: Callable[[BatchContext[Any]], Array]
    config: GPT2Config
    dtype: np.dtype[Any]
    context: type[BatchContext[Any]] = Context
    hooked_context: type[Hooked[Any]] = HookedContext

    def run(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        hook: Hook | None = None,
        rank: Rank | None = None,
    ) -> Array:
        """Run the new tokens of `sequences`; return the logits (R, V) of tokens `logits_indices`.

        The caches get the tokens' keys and values, and must have capacity for them. The arguments
        must be valid. With `rank`, this process computes only this rank's share of the pass. The
        logits are then in shared memory, which the next pass overwrites.
        """
        counts = list(map(len, sequences))
        with single_threaded_blas():
            if hook is not None:
                [batch] = make_batches(sequences, caches, logits_indices, None)
                ctx: BatchContext[Any] = self.hooked_context(self.config, batch, hook)
            elif sum(counts) > SMALL_BATCH:
                return self._run_prompts(sequences, caches, logits_indices, rank)
            else:
                n_workers = 1 if rank else self._attention_workers(counts, caches)
                [batch] = make_batches(sequences, caches, logits_indices, n_workers)
                if rank:
                    ctx = TensorParallelContext(self.config, batch, rank)
                else:
                    ctx = self.context(self.config, batch)
            logits = self.function(ctx)
            _advance(batch)
            return logits

    def _run_prompts(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        rank: Rank | None,
    ) -> Array:
        """Compute a long pass in chunks of PREFILL_CHUNK tokens, which the ranks share."""
        n_workers = rank.world_size if rank else python_threads()
        logits: Array | None = None
        if rank:
            logits = rank.output(0, len(logits_indices), self.config.vocab_size)
        elif sum(map(len, sequences)) > PREFILL_CHUNK:
            logits = np.empty((len(logits_indices), self.config.vocab_size), self.dtype)
        for batch in make_batches(sequences, caches, logits_indices, n_workers):
            if rank:
                batch = batch.share_of(rank.rank, rank.world_size)
                ctx: BatchContext[Any] = ContextParallelContext(self.config, batch, rank)
            else:
                ctx = self.context(self.config, batch)
            result = self.function(ctx)
            _advance(batch)
            if logits is None:
                return result
            logits[batch.logits_mask] = result
            if rank:
                rank.barrier()
        assert logits is not None
        return logits

    def _attention_workers(self, counts: Sequence[int], caches: Sequence[KVCache]) -> int:
        """Return how many threads share the attention of a pass over at most SMALL_BATCH tokens."""
        n_scores = sum(n * (n + c.length) for n, c in zip(counts, caches, strict=True))
        is_small = 2 * n_scores * self.config.n_embd < MIN_SHARED_WORK  # of one layer
        return 1 if is_small else python_threads()


def _advance(batch: Batch) -> None:
    """Update the caches' lengths after a pass."""
    for cache, tokens in zip(batch.caches, batch.slices, strict=True):
        cache.length += tokens.stop - tokens.start
