"""The class GPT2, which loads a model and computes logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.load import read_checkpoint
from gpt2np.checkpoint.safetensors_file import read_tensors
from gpt2np.data.files import as_path
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.kernels.array import Array, raise_mmap_threshold
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.threads import thread_count
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.weights import Weights
from gpt2np.options import options_of
from gpt2np.runtime.arguments import check_caches, check_logits_indices, check_sequences
from gpt2np.runtime.context import Context, ExactContext, Hook
from gpt2np.runtime.kv_cache import KVCache, KVStore, reserve, roll_back
from gpt2np.runtime.model_runner import ModelRunner
from gpt2np.runtime.options import ModelOptions
from gpt2np.runtime.ranks import max_processes

if TYPE_CHECKING:
    from gpt2np.runtime.process_group import ProcessGroup


class GPT2:
    """A GPT-2 model: its weights, and the forward pass that computes logits from token ids.

    A model can be pickled and copied; `processes` is 1 in the copy. If the model was loaded from
    a folder, its pickle contains only the folder's path.

    Threads can share a model if each thread uses its own KV caches. Assign `processes` while no
    other thread computes.

    Attributes:
        config: the architecture.
        weights: an immutable mapping from names to read-only arrays. For a model with another
            array, call `GPT2(model.config, {**model.weights, name: array})`.
        dtype: the dtype of the weights and of every array of the forward pass.
        weight_dtype: "int8" if the matrices are stored in 8 bits; None if in `dtype`.
        exact: whether passes have the same bits on every machine.
    """

    def __init__(
        self,
        config: GPT2Config,
        weights: Mapping[str, Array],
        *,
        weight_dtype: Literal["int8"] | None = None,
        exact: bool = False,
    ) -> None:
        """Create a model from copies of weights by name, in the dtype of the embedding.

        With `weight_dtype` "int8", the matrices are quantized to 8 bits; with `exact`, passes
        have the same bits on every machine. See `from_folder`.

        Raises:
            InvalidArgumentError: a weight is missing, or has the wrong shape or dtype; or with
                "int8", a matrix has NaN or infinity.
        """
        check_argument(isinstance(config, GPT2Config), "config", config, "a GPT2Config")
        is_mapping = isinstance(weights, Mapping)
        check_argument(is_mapping, "weights", weights, "a mapping from names to arrays")
        raise_mmap_threshold()
        expected = "None for an exact model" if exact else "None or 'int8'"
        is_possible = weight_dtype is None or (weight_dtype == "int8" and not exact)
        check_argument(is_possible, "weight_dtype", weight_dtype, expected)
        self.config, self.weight_dtype, self.exact = config, weight_dtype, exact
        packed = Weights(config, weights, quantize=weight_dtype == "int8", exact=exact)
        self.weights, self.dtype = packed, packed.dtype
        kind = ExactContext if exact else Context
        self._runner = ModelRunner(lambda ctx: gpt2(ctx, packed.layers), config, self.dtype, kind)
        self._group: ProcessGroup | None = None
        self._folder: Path | None = None

    def __setattr__(self, name: str, value: object) -> None:
        read_only = "config", "weights", "dtype", "weight_dtype", "exact"
        if name in read_only and name in self.__dict__:
            raise AttributeError(f"{name} is read-only; make a new model: GPT2(config, weights)")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._folder:
            return GPT2.from_folder, (self._folder, str(self.dtype), self.weight_dtype, self.exact)
        create = partial(GPT2, weight_dtype=self.weight_dtype, exact=self.exact)
        return create, (self.config, dict(self.weights))

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        dtype: DTypeLike = np.float32,
        weights: Literal["int8"] | None = None,
        exact: bool = False,
    ) -> GPT2:
        """Load a model from a folder with `config.json` and weights.

        The model computes in `dtype`, float32 or float64. With `weights` "int8", the matrices are
        quantized to 8-bit integers, with one scale for up to 192 inputs of an output; the quantized
        matrices take a quarter of the memory of float32 matrices. To load a model by its name, use
        `gpt2np.load(name).model`. Until the second pass, do not change the weights' file in place.

        With `exact`, the model computes in float64. Each operation gives the same bits on every
        machine, in any batch, with or without KV cache, on any number of threads
        (`gpt2np.kernels.exact`). A pass takes several times as long as in float32, the weights
        take four times as much memory, and `processes` stays 1.

        Raises:
            CheckpointError: a file is missing or damaged, or the weights don't match the config.
            InvalidArgumentError: `dtype` is neither float32 nor float64, `weights` is unknown, or
                `exact` is not a bool.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise InvalidArgumentError(f"dtype is {dtype!r}; it must be float32 or float64")
        ModelOptions(weights=weights, exact=exact)  # raises an error that names the argument
        folder = as_path(folder)
        checkpoint = read_checkpoint(folder)
        stored = read_tensors(checkpoint.model_tensors(), np.float64 if exact else dtype)
        model = cls(checkpoint.config, stored, weight_dtype=weights, exact=exact)
        model._folder = folder.absolute()
        return model

    def save(self, folder: str | Path) -> None:
        """Write the model to a new or empty folder, for gpt2np and `transformers` to load.

        The weights keep the model's dtype. A quantized model writes its rounded weights in this
        dtype. If you load these weights with "int8", the logits are the same bit for bit. To add
        the vocabulary, call `Tokenizer.save(folder)`.

        Raises:
            InvalidArgumentError: the folder is not empty, or has the name of a model, such as gpt2.
            OSError: the folder can't be written.
        """
        from gpt2np.checkpoint.convert import write_checkpoint  # most programs write no model

        write_checkpoint(self.config, self.weights, as_path(folder))

    @property
    def summary(self) -> str:
        """The size of the model in one line."""
        config, millions = self.config, self.weights.parameters / 1e6
        return (
            f"{config.n_layer} blocks, {config.n_head} heads, {config.n_embd} channels, "
            f"{millions:,.1f} million parameters, {self.dtype}"
            + (f", {self.weight_dtype} weights" if self.weight_dtype else "")
            + (", exact" if self.exact else "")
        )

    def __repr__(self) -> str:
        return f"<GPT2: {self.summary}>"

    @property
    def fingerprint(self) -> str:
        """A SHA-256 digest of the config, the dtypes and all weights."""
        import hashlib  # most programs need none

        digest = hashlib.sha256(f"{self.config} {self.dtype}{' exact' * self.exact}".encode())
        for name, array in sorted(self.weights.items()):
            digest.update(f"{name} {array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def new_cache(self) -> KVCache:
        """Return an empty KV cache for one sequence."""
        allocate = getattr(self._group, "allocate", None)  # another thread may end the group
        store = KVStore(self.config, self.dtype, allocate=allocate)
        return KVCache(store, weights=self.weights)

    @property
    def processes(self) -> int | Literal["auto"]:
        """The number of processes that compute a pass together, 1 to 64, or "auto"; 1 by default.

        With "auto", measured times select the number for each pass, up to the number of CPU cores,
        of the numbers that give the same bits. The first 0.3 seconds of passes use one process. A
        number that you set can affect the logits by rounding; see `forward`.

        For an exact model, and on systems other than Linux with an x86 processor, the number stays
        1; without a global interpreter lock (GIL), workers are threads on every system. A pass with
        a hook, or with logits for more than 64 tokens, runs in this process alone.

        The first pass that needs workers forks them. Workers share this process's memory, and end
        with the model. They can use caches that `new_cache` makes after `processes` is set. If the
        program forks, `processes` is 1 in the child's copy of the model, and the child has copies
        of the caches.

        Costs: every pass waits for the slowest process, so a single process can be faster on a busy
        machine. While the number is above 1, BLAS uses one thread in this process. Workers keep the
        memory that this process frees after the fork. Memory of freed caches, up to half of the
        weights' size, is kept for later caches. NumPy warns of overflow only in this process's
        share of a pass. Workers appear in `multiprocessing.active_children`.
        """
        group = self._group
        if group is None:
            return 1
        return "auto" if group.tuner and group.world_size > 1 else group.world_size

    @processes.setter
    def processes(self, count: int | Literal["auto"]) -> None:
        options_of(ModelOptions)["processes"].check(count)
        if count == self.processes or self.exact:
            return
        if self._group:
            self._group.close()
            self._group = None
        tuner = None
        if count == "auto":
            from gpt2np.runtime.rank_tuner import RankTuner

            tuner = RankTuner(thread_count(), self.config.n_head)
        if (size := min(tuner.max_ranks if tuner else int(count), max_processes())) > 1:
            from gpt2np.runtime.process_group import ProcessGroup

            width, max_kept = self.weights.max_width, self.weights.nbytes // 2
            with suppress(OSError):  # the system refuses shared memory
                self._group = ProcessGroup(self._runner, size, width, max_kept, self, tuner)

    @np.errstate(under="ignore")
    def forward(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        logits_indices: ArrayLike | None = None,
        hook: Hook | None = None,
    ) -> Array:
        """Compute next-token logits for all N new tokens, or for R of them. Returns (R, V).

        Up to rounding, a token's logits depend only on the sequence that contains the token. In an
        exact model, caching, draft tokens, other texts and `processes` change no bit of the logits.
        If `gpt2np.kernels.blas.small_kernels()` is True, this holds for every model.

        Continue a text greedily, computing one token per step:

            cache = model.new_cache()
            logits = model.forward([ids], [cache])
            for _ in range(20):
                ids.append(int(logits[-1].argmax()))
                logits = model.forward([ids[-1:]], [cache])

        Args:
            sequences: the new token ids of each sequence, as in [[5, 6, 7], [8]]; N ids in total.
            caches: one KVCache per sequence, which holds the earlier tokens of the sequence. The
                new tokens are appended to the cache. By default, there are no earlier tokens.
            logits_indices: the indices of the tokens whose logits are returned, counted over all
                sequences; by default all N tokens. Generation needs
                `last_token_indices(sequences)`.
            hook: a function hook(name, array) → array, called at every hook point of the pass.
                The result must have the array's shape, and replaces the array.
                `help(gpt2np.model.gpt2)` lists the hook points.

        Raises:
            ContextLengthError: a sequence would exceed n_positions tokens.
            InvalidArgumentError: a token id, index, sequence, cache or hook result is invalid.
        """
        check_argument(hook is None or callable(hook), "hook", hook, "a function")
        new = check_sequences(sequences, self.config.vocab_size)
        if caches is None:
            caches = [self.new_cache() for _ in new]
        check_caches(caches, new, self.config, self.weights)
        n_tokens = sum(map(len, new))
        indices = check_logits_indices(logits_indices, n_tokens)
        group = self._group  # another thread may replace it
        lengths = [cache.length for cache in caches]
        is_alone = group is None or group.tuner is not None  # no worker is forked in the first pass
        self.weights.prepare(is_short=is_alone and n_tokens <= SMALL_BATCH)
        try:
            reserve(caches, list(map(len, new)))
            if group and hook is None and len(indices) <= SMALL_BATCH:
                logits = group.run(new, caches, indices)
                if logits is not None:
                    return logits
            return self._runner.run(new, caches, indices, hook)
        except BaseException:  # such as Ctrl-C
            roll_back(caches, lengths)
            raise

    @np.errstate(under="ignore")
    def unembed(self, x: Array) -> Array:
        """Return the logits (n, V) for outputs x (n, C) of the final layer norm."""
        self.weights.prepare(is_short=False)
        with single_threaded_blas():
            return self._runner.context.unembed(x, self.weights.layers.lm_head)
