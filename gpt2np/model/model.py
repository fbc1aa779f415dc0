"""The class GPT2: load a model, compute logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.load import load_weights, read_checkpoint
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.kernels.linear import linear, map_rows
from gpt2np.kernels.malloc import raise_mmap_threshold
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.weights import pack_weights
from gpt2np.runtime.arguments import check_caches, check_logits_indices, check_sequences
from gpt2np.runtime.hooks import Hook
from gpt2np.runtime.kv_cache import KVCache, private_zeros, reserve, rollback_on_error
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.ranks import max_processes

if TYPE_CHECKING:
    from gpt2np.runtime.process_group import ProcessGroup


class GPT2:
    """GPT-2's weights, and the function from token ids to logits.

    Attributes:
        config: the architecture.
        weights: name → array, see `gpt2np.runtime.packed_weights`.
    """

    def __init__(self, config: GPT2Config, weights: Mapping[str, Array]) -> None:
        raise_mmap_threshold()
        self.config = config
        self.weights = pack_weights(config, weights)
        self._runner = ModelRunner(gpt2, config, self.weights)
        self._group: ProcessGroup | None = None

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: DTypeLike = np.float32) -> GPT2:
        """Load `config.json` and the weights beside it, to compute in float32 or float64.

        `gpt2np.load(name).model` loads a model by its name.

        Raises:
            CheckpointError: files are missing, damaged, or don't fit each other.
            InvalidArgumentError: another dtype.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise InvalidArgumentError(f"dtype is {dtype!r}; it must be float32 or float64")
        checkpoint = read_checkpoint(Path(folder))
        return cls(checkpoint.config, load_weights(checkpoint, dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights and of every array of the forward pass."""
        return self.weights.dtype

    def new_cache(self) -> KVCache:
        """Return an empty cache for one sequence."""
        group = self._group
        return KVCache(self.config, self.dtype, group.allocate if group else private_zeros)

    @property
    def processes(self) -> int:
        """The number of processes that compute a pass together; 1 by default.

        Assign a larger number to fork workers at the first pass that needs them. Workers share this
        process's memory, see the caches that `new_cache` makes from then on, and end with the
        model. The number stays 1 outside of Linux on x86, and is at most the number of threads. The
        results are the same, to the bit where `forward` says so. A pass with a hook, or with more
        than 64 requested logits, runs in this process alone.

        Costs: every rank waits for the slowest, so one process can be faster while other programs
        need the CPUs. BLAS has one thread in this process as long as workers exist. Workers keep
        the memory that this process frees after the fork. Freed caches keep up to half of the
        weights' memory for later caches. A fork made by the program has one process again, and
        can't use the caches. NumPy warns of overflow only in this process's share.
        """
        return self._group.world_size if self._group else 1

    @processes.setter
    def processes(self, count: int) -> None:
        if count < 1:
            raise InvalidArgumentError(f"processes is {count}; it must be at least 1")
        if count == self.processes:
            return
        if self._group:
            self._group.close()
            self._group = None
        if (count := min(count, max_processes())) > 1:
            from gpt2np.runtime.process_group import ProcessGroup  # most starts need none

            with suppress(OSError):  # the system refuses shared memory
                self._group = ProcessGroup(self._runner, count, owner=self)

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers; none before the first pass that needs them."""
        return self._group.worker_pids if self._group else []

    def forward(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        logits_indices: ArrayLike | None = None,
        hook: Hook | None = None,
    ) -> Array:
        """Return logits (R, V) for what follows each of R of the N new tokens.

        A token's logits have the same bits in a prompt, after a cache, among draft tokens and in
        any batch, where `gpt2np.kernels.blas.small_kernels()`; elsewhere they agree to rounding.

        Continue a text greedily, computing one token per step:

            cache = model.new_cache()
            logits = model.forward([ids], [cache])
            for _ in range(20):
                ids.append(int(logits[-1].argmax()))
                logits = model.forward([ids[-1:]], [cache])

        Args:
            sequences: the new ids of each sequence, as in [[5, 6, 7], [8]]; N in all.
            caches: one KVCache per sequence with its earlier tokens; each grows by the new tokens.
                Without caches, every sequence begins here.
            logits_indices: which of the N tokens, counted over all sequences, to return logits for;
                by default all. `last_token_indices(sequences)` are what generation needs.
            hook: called as hook(name, array) with every inner array; the result, of the same shape,
                replaces the array. `help(gpt2np.model.gpt2)` lists the hook points.

        Raises:
            ContextLengthError: a sequence would exceed n_positions tokens.
            InvalidArgumentError: an invalid id, index, sequence, cache, or result of the hook.
        """
        new = check_sequences(sequences, self.config.vocab_size)
        if caches is None:
            caches = [self.new_cache() for _ in new]
        check_caches(caches, new, self.config, self.dtype)
        n_tokens = sum(map(len, new))
        indices = check_logits_indices(logits_indices, n_tokens)
        # A short first pass is over before the weights are packed.
        is_worthwhile = self.weights.was_used or n_tokens > SMALL_BATCH
        if self._group and hook is None and len(indices) <= SMALL_BATCH and is_worthwhile:
            reserve(caches, list(map(len, new)), self._group.allocate)
            logits = self._group.run(new, caches, indices)
            if logits is not None:
                return logits
        with rollback_on_error(caches):
            return self._runner.run(new, caches, indices, hook)

    def unembed(self, x: Array) -> Array:
        """Return the logits (n, V) of final layer norm outputs x (n, C)."""
        w = self.weights.for_pass(short=False).lm_head
        with single_threaded_blas():
            return map_rows(
                lambda rows: linear(rows, w.panels)[:, : w.out_features], w.out_features, x
            )
