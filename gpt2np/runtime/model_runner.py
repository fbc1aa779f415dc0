"""Execution of a model's forward pass in one process, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads, single_threaded_blas
from gpt2np.kernels.matmul import MIN_SHARED_WORK, SMALL_BATCH
from gpt2np.runtime.batch import PREFILL_CHUNK, Batch, make_batches
from gpt2np.runtime.context import Context
from gpt2np.runtime.hooked_context import Hook, HookedContext
from gpt2np.runtime.kv_cache import KVCache, KVStore, reserve
from gpt2np.runtime.ranks import ContextParallelContext, Rank, TensorParallelContext

_MAX_BATCHES = 32  # of _DecodeSteps: one number of draft tokens each


@dataclass(frozen=True)
class _DecodeSteps:
    """Batches of earlier decode steps, which later steps over the same KV caches reuse."""

    places: list[tuple[KVStore, int]]  # of each KV cache
    # (*new tokens per sequence, -1, *logits_indices) → lengths of the caches before the pass, batch
    batches: dict[tuple[int, ...], tuple[list[int], Batch]] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelRunner:
    """A model's forward function.

    Attributes:
        function: the forward function; computes the logits (R, V) from a context.
        config: the architecture.
        dtype: the dtype of every array of the pass.
        context, hooked_context: the contexts of passes without and with a hook on one rank.
    """

    function: Callable[[Context], Array]
    config: GPT2Config
    dtype: np.dtype[Any]
    context: type[Context] = Context
    hooked_context: type[HookedContext] = HookedContext
    _steps: WeakKeyDictionary[KVCache, _DecodeSteps] = field(
        default_factory=WeakKeyDictionary, init=False
    )

    def run(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        logits_indices: IntArray,
        hook: Hook | None = None,
        rank: Rank | None = None,
    ) -> Array:
        """Run the new tokens of `sequences`; return the logits (R, V) of tokens `logits_indices`.

        The caches get the tokens' keys and values. The arguments must be valid. With `rank`, this
        process computes only this rank's share of the pass. The logits are then in shared memory,
        which the next pass overwrites.
        """
        counts = list(map(len, sequences))
        reserve(caches, counts)
        with single_threaded_blas():
            if hook is not None:
                [batch] = make_batches(sequences, caches, logits_indices, 1, whole_sequences=True)
                ctx: Context = self.hooked_context(self.config, batch, hook)
            elif sum(counts) > SMALL_BATCH:
                return self._run_prompts(sequences, caches, logits_indices, rank)
            else:
                batch = self._short_batch(
                    sequences, caches, counts, logits_indices, 1 if rank else python_threads()
                )
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
                ctx: Context = ContextParallelContext(self.config, batch, rank)
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

    def _short_batch(
        self,
        sequences: Sequence[IntArray],
        caches: Sequence[KVCache],
        counts: Sequence[int],
        logits_indices: IntArray,
        n_workers: int,
    ) -> Batch:
        """Return the batch of a pass of at most SMALL_BATCH tokens.

        Reuses an earlier batch with the same caches, `counts` of new tokens, and `logits_indices`.
        """
        lengths = [cache.length for cache in caches]
        places = [cache.place for cache in caches]
        steps = self._steps.get(caches[0])
        if steps is None or steps.places != places:
            steps = self._steps[caches[0]] = _DecodeSteps(places)
        key = *counts, -1, *logits_indices.tolist()
        if key in steps.batches:
            earlier, batch = steps.batches[key]
            by = lengths[0] - earlier[0]
            if lengths == [length + by for length in earlier]:
                return batch.later(by, sequences, list(caches))
        n_scores = sum(n * (n + start) for n, start in zip(counts, lengths, strict=True))
        if 2 * n_scores * self.config.n_embd < MIN_SHARED_WORK:  # attention of one layer
            n_workers = 1
        [batch] = make_batches(sequences, caches, logits_indices, n_workers)
        if len(steps.batches) == _MAX_BATCHES:
            steps.batches.clear()
        steps.batches[key] = lengths, replace(batch, caches=[])
        return batch


def _advance(batch: Batch) -> None:
    """Update the caches' lengths after a pass."""
    for cache, tokens in zip(batch.caches, batch.slices, strict=True):
        cache.length += tokens.stop - tokens.start
