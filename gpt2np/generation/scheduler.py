"""Continuous batching: sequences join a batch when memory allows, and leave when they end."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from gpt2np.generation.logits_processors import check_finite
from gpt2np.generation.model_draft import ModelDraft
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array
from gpt2np.limits import limits
from gpt2np.model import GPT2
from gpt2np.runtime.kv_cache import cache_nbytes


class Scheduler:
    """Runs the sequences of one model in batches; sequences may join at any time.

        >>> scheduler = Scheduler(model)
        >>> scheduler.add(sequence)
        >>> while scheduler.busy:
        ...     for finished in scheduler.step():
        ...         print(finished.ids)

    Sequences start in the order in which they were added. Use a scheduler from one thread only.
    """

    def __init__(
        self,
        model: GPT2,
        max_running: int = 16,
        cache_bytes: int | None = None,
        free_caches: bool = True,
    ) -> None:
        """Limit a batch to `max_running` sequences and `cache_bytes` bytes of KV caches.

        `cache_bytes` (default: `Limits.max_cache_bytes`) includes the KV caches of draft models and
        shared prefixes. A sequence that runs alone may exceed `cache_bytes`. Memory stays allocated
        for reuse, up to three times `cache_bytes`. With `free_caches`, the scheduler frees the KV
        cache of a sequence that ends.
        """
        self.running: list[RunningSequence] = []
        self.waiting: deque[RunningSequence] = deque()
        self._model = model
        self._max_running = max_running
        self._cache_bytes = limits().max_cache_bytes if cache_bytes is None else cache_bytes
        self._free_caches = free_caches

    @property
    def busy(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def free(self) -> int:
        """Number of further sequences that fit in `max_running`; memory may allow fewer."""
        return max(0, self._max_running - len(self.running) - len(self.waiting))

    def add(self, sequence: RunningSequence) -> None:
        """Add a sequence to the queue."""
        self.waiting.append(sequence)

    def step(self) -> list[RunningSequence]:
        """Run one decode step: each running sequence gets one token, or more with draft tokens.

        Returns the sequences that have ended since the last step. A sequence ends with its `error`
        set if the options forbid every next token, or the caller's code raises an exception.

        Raises:
            CheckpointError: the logits are infinite or NaN.
        """
        if self.waiting:
            self._admit()
        for batch in self._batches():
            drafts = _prepare(batch, self._model)
            inputs: list[list[int]] = []
            logits_indices: list[int] = []
            n_tokens = 0
            for sequence, draft in zip(batch, drafts, strict=True):
                ids = [*sequence.pending_ids(), *draft]
                inputs.append(ids)
                n_tokens += len(ids)
                logits_indices += range(n_tokens - 1 - len(draft), n_tokens)
            caches = [sequence.cache for sequence in batch]
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # check_finite raises instead
                    logits = self._model.forward(
                        inputs, caches, logits_indices=logits_indices, hook=batch[0].hook
                    )
                check_finite(logits, self._model)
                start = 0
                for sequence, draft in zip(batch, drafts, strict=True):
                    stop = start + 1 + len(draft)
                    _accept(sequence, logits[start:stop], draft)
                    start = stop
            except BaseException:  # such as Ctrl-C: restore the state that the next step expects
                for sequence in batch:
                    sequence.drop_rejected()
                raise
        return self._remove_finished()

    def _batches(self) -> list[list[RunningSequence]]:
        """Group the running sequences in one batch; each sequence with interventions runs alone."""
        running = [sequence for sequence in self.running if sequence.finish_reason is None]
        together = [s for s in running if not s.callbacks.interventions]
        if len(together) > 1:
            together = _sort_by_slot(together)
        # An intervention must see the arrays of one sequence only.
        alone = [[s] for s in running if s.callbacks.interventions]
        return [together, *alone] if together else alone

    def _admit(self) -> None:
        """Move waiting sequences to the batch until `max_running` or `cache_bytes` is reached."""
        prefixes = {s.shared_prefix for s in (*self.running, *self.waiting) if s.shared_prefix}
        prefixes = {prefix for prefix in prefixes if prefix.cache is not None}
        reserved = sum(map(self._nbytes, self.running))
        reserved += sum(_max_nbytes(self._model, len(prefix.ids)) for prefix in prefixes)
        while self.waiting:
            candidate = self.waiting[0]
            reserved += self._nbytes(candidate)
            prefix = candidate.shared_prefix
            if prefix and prefix not in prefixes:
                prefixes.add(prefix)
                reserved += _max_nbytes(self._model, len(prefix.ids))
            fits = len(self.running) < self._max_running and reserved <= self._cache_bytes
            if self.running and not fits:
                return
            self.running.append(self.waiting.popleft())

    def _remove_finished(self) -> list[RunningSequence]:
        finished = [sequence for sequence in self.running if sequence.finish_reason]
        if finished:
            self.running = [s for s in self.running if s.finish_reason is None]
        for sequence in finished if self._free_caches else ():
            sequence.cache = self._model.new_cache()
            sequence.speculation = None
        return finished

    def _nbytes(self, sequence: RunningSequence) -> int:
        """Return the maximum bytes of a sequence's KV cache and its draft model's KV cache."""
        length = len(sequence.prompt) + sequence.options.max_new_tokens
        nbytes = _max_nbytes(self._model, length)
        if isinstance(sequence.speculation, ModelDraft):
            nbytes += _max_nbytes(sequence.speculation.model, length)
        return nbytes


def _max_nbytes(model: GPT2, length: int) -> int:
    """Return the size in bytes of a KV cache for min(`length`, context length) tokens."""
    return cache_nbytes(model.config, min(length, model.config.n_positions), model.dtype)


def _sort_by_slot(batch: Sequence[RunningSequence]) -> list[RunningSequence]:
    """Sort sequences by KV store and slot: attention reads adjacent slots in one product.

    KV stores are ordered by their first appearance in `batch`, so that every run gives
    bit-identical results.
    """
    store_order: dict[int, int] = {}
    for i, sequence in enumerate(batch):
        store_order.setdefault(id(sequence.cache.store), i)
    return sorted(batch, key=lambda s: (store_order[id(s.cache.store)], s.cache.slot))


def _prepare(batch: Sequence[RunningSequence], model: GPT2) -> Sequence[Sequence[int]]:
    """Slide full context windows, and copy shared prefixes. Returns each sequence's draft tokens.

    A batch with a prompt gets no drafts: its pass is compute-bound, so drafts would cost time.
    """
    for sequence in batch:
        sequence.slide_window()
        if sequence.shared_prefix:
            sequence.shared_prefix.copy_to(sequence, model)
    speculates = any(s.speculation and s.tokens_left > 0 for s in batch)
    if not speculates or any(s.n_pending > 1 for s in batch):
        return [()] * len(batch)
    from gpt2np.generation.speculation import propose_drafts

    return propose_drafts(batch)


def _accept(sequence: RunningSequence, logits: Array, draft: Sequence[int]) -> None:
    n_ids = len(sequence.ids)
    try:
        sequence.accept(logits, draft)
    except Exception as error:  # this sequence's options or callbacks; the other sequences go on
        sequence.end("cancelled", error)
        return
    if sequence.speculation:
        sequence.speculation.update(draft, sequence.ids[n_ids:])
