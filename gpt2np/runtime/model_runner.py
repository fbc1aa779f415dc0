"""Execution of a model's forward pass in one process, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads, single_threaded_blas
from gpt2np.kernels.matmul import SMALL_BATCH, min_rows
from gpt2np.runtime.batch import PREFILL_CHUNK, Batch, make_batches
from gpt2np.runtime.context import Context
from gpt2np.runtime.hooks import Hook, HookedContext
from gpt2np.runtime.kv_cache import KVCache
from gpt2np.runtime.packed_weights import PackedWeights
from gpt2np.runtime.ranks import ContextParallelContext, Rank, TensorParallelContext


@dataclass(frozen=True)
class ModelRunner:
    """A model's forward function and weights.

    Attributes:
        function: computes the logits (R, V) from a context and the weights of one pass.
        config: the architecture.
        weights: the weights, which are packed when needed.
    """

    function: Callable[[Context, Any], Array]
    config: GPT2Config
    weights: PackedWeights

    def run(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        hook: Hook | None = None,
        rank: Rank | None = None,
    ) -> Array:
        """Append the sequences to the caches; return the logits of the tokens at `logits_indices`.

        The caller has checked the arguments. With `rank`, this process computes only that rank's
        share of the pass. The result is then in shared memory, which the next pass overwrites.
        Returns (R, V).
        """
        n_tokens = sum(map(len, sequences))
        is_context_parallel = rank is not None and n_tokens > SMALL_BATCH
        n_workers = python_threads()
        if rank:
            n_workers = rank.world_size if is_context_parallel else 1
        batches = make_batches(
            sequences, caches, logits_indices, n_workers, whole_sequences=hook is not None
        )
        is_single = hook or (n_tokens <= PREFILL_CHUNK and not is_context_parallel)
        logits = None if is_single else self._empty_logits(len(logits_indices), rank)
        with single_threaded_blas():
            for batch in batches:
                if rank and is_context_parallel:
                    batch = batch.share_of(rank.rank, rank.world_size)
                if len(batch.token_ids) < min_rows() and hook is None:
                    batch = batch.doubled()
                weights = self.weights.for_pass(short=len(batch.token_ids) <= SMALL_BATCH)
                result = self.function(self._context(batch, hook, rank, n_tokens), weights)
                for cache, tokens in zip(batch.caches, batch.sequences, strict=True):
                    cache.advance(tokens.stop - tokens.start)
                result = result[: np.count_nonzero(batch.logits_mask)]  # drops a repeated row
                if logits is None:
                    return result
                logits[batch.logits_mask] = result
                if rank and is_context_parallel:
                    rank.barrier()
        assert logits is not None
        return logits

    def _empty_logits(self, n: int, rank: Rank | None) -> Array:
        if rank:
            return rank.shared_buffers["lm_head"][:n, : self.config.vocab_size]
        return np.empty((n, self.config.vocab_size), self.weights.dtype)

    def _context(
        self, batch: Batch, hook: Hook | None, rank: Rank | None, n_tokens: int
    ) -> Context:
        if hook:
            return HookedContext(self.config, batch, hook)
        if rank is None:
            return Context(self.config, batch)
        kind = TensorParallelContext if n_tokens <= SMALL_BATCH else ContextParallelContext
        return kind(self.config, batch, rank)
