"""Continuous batching: sequences join a batch when memory allows, and leave when they end."""

import sys
import time
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import attrgetter, itemgetter

import numpy as np

from gpt2np.errors import CheckpointError, InvalidArgumentError, check_argument
from gpt2np.generation.logits_processors import check_finite
from gpt2np.generation.model_draft import ModelDraft
from gpt2np.generation.sequence import RunningSequence, SharedPrefix
from gpt2np.kernels.array import Array, common_length
from gpt2np.limits import limits
from gpt2np.model import GPT2
from gpt2np.runtime.kv_cache import cache_nbytes

_MASK_SECONDS = 0.05  # of a step, for the masks of constraints
_ALONE_SECONDS = 0.1  # of a step, for sequences with interventions beside others
_COPIES_PER_TOKEN = 8  # tokens whose keys and values are copied while one is computed
_MIN_SHARED = 16  # tokens; copying fewer keys and values saves no time


class Scheduler:
    """Runs the sequences of one model in batches; sequences may join at any time.

        >>> scheduler = Scheduler(model)
        >>> scheduler.add(sequence)
        >>> while scheduler.busy:
        ...     for finished in scheduler.step():
        ...         print(finished.ids)

    Sequences start in the order in which they were added, unless `add` gets a `place`. Use a
    scheduler from one thread only. Several threads may each have a scheduler for the same model.
    """

    def __init__(
        self,
        model: GPT2,
        max_running: int = 16,
        cache_bytes: int | None = None,
        free_caches: bool = True,
        prefill_chunk: int | None = None,
    ) -> None:
        """Limit a batch to `max_running` sequences and `cache_bytes` bytes of KV caches.

        `cache_bytes` (default: `Limits.max_cache_bytes`) includes the KV caches of draft models and
        shared prefixes. A sequence that runs alone may exceed `cache_bytes`. Memory stays allocated
        for reuse, up to three times `cache_bytes`. With `free_caches`, the scheduler frees the KV
        cache of a sequence that ends.

        A decode step computes at most `prefill_chunk` tokens of prompts (default: no limit), or
        half as many while a sequence generates. Thus a long prompt delays the running sequences by
        at most half a chunk. Eight tokens that are copied from a shared prefix count as one.
        """
        check_argument(isinstance(model, GPT2), "model", model, "a GPT2, such as lm.model")
        self.running: list[RunningSequence] = []
        self.waiting: list[RunningSequence] = []
        self._model = model
        self._max_running = max_running
        self._cache_bytes = limits().max_cache_bytes if cache_bytes is None else cache_bytes
        self._finished: list[RunningSequence] = []  # to be returned by `step`
        self._turn = 0  # of the last sequence that has begun
        self._free_caches = free_caches
        self._prefill_chunk = prefill_chunk or sys.maxsize

    @property
    def busy(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def free(self) -> int:
        """Number of further sequences that fit in `max_running`; memory may allow fewer."""
        return max(0, self._max_running - len(self.running) - len(self.waiting))

    def add(self, sequence: RunningSequence, place: int = 0) -> None:
        """Add a sequence to the queue.

        A caller that adds several sequences at a time can number them with `place`, starting at 0.
        Then callers take turns: the first sequence of each waiting caller starts before the second
        sequence of any caller.

        Raises:
            InvalidArgumentError: the sequence belongs to another model.
        """
        expected = "a RunningSequence, such as stream.sequence"
        check_argument(isinstance(sequence, RunningSequence), "sequence", sequence, expected)
        if not sequence.cache.is_from(self._model.weights):
            raise InvalidArgumentError("the sequence is another model's")
        sequence.turn = self._turn + 1 + place
        insort(self.waiting, sequence, key=attrgetter("turn"))

    @np.errstate(all="ignore")  # check_finite finds infinity and NaN
    def step(self) -> list[RunningSequence]:
        """Run one decode step: each running sequence gets one token, or more with draft tokens.

        Returns the sequences that have ended since the last step. A sequence that runs or waits
        ends before the step if it was cancelled or its deadline has passed. A sequence ends with
        its `error` set if the options forbid every next token, or the caller's code raises an
        exception.

        After an interruption by an exception, such as Ctrl-C, call `step` again. Whether or not a
        sequence has received its new token, it continues with the same tokens as without the
        interruption.

        Raises:
            CheckpointError: the logits are infinite or NaN.
        """
        now = time.monotonic()
        for sequence in (*self.running, *self.waiting):
            if sequence.is_cancelled:
                sequence.end("cancelled", sequence.cancel_error)
            elif sequence.deadline <= now:
                sequence.end("time")
        self._remove_finished()  # their places are free in this step
        if self.waiting:
            self._admit()
        n_left = self._prefill_chunk
        if n_left < sys.maxsize and any(sequence.n_pending == 1 for sequence in self.running):
            n_left = max(1, n_left // 2)
        for group in self._batches():
            n_left = self._run(group, n_left)
        self._remove_finished()
        finished, self._finished = self._finished, []
        return finished

    def _run(self, group: Sequence[RunningSequence], n_left: int) -> int:
        """Run a pass with at most `n_left` tokens of prompts; return how many are left."""
        batch, inputs, n_left = self._inputs(group, n_left)
        if not batch:
            return n_left
        self._turn = max([self._turn, *[sequence.turn for sequence in batch]])
        drafts = _drafts(batch)
        # A long prompt takes several chunks; only the last one predicts a token.
        is_last = [len(ids) == s.n_pending for s, ids in zip(batch, inputs, strict=True)]
        logits_indices: list[int] = []
        n_tokens = 0
        for ids, draft, predicts in zip(inputs, drafts, is_last, strict=True):
            ids += draft
            n_tokens += len(ids)
            if predicts:
                logits_indices += range(n_tokens - 1 - len(draft), n_tokens)
        logits = self._forward(batch, inputs, logits_indices)
        if logits is None:
            return n_left
        start = 0
        for sequence, draft, predicts in zip(batch, drafts, is_last, strict=True):
            if predicts:
                stop = start + 1 + len(draft)
                _accept(sequence, logits[start:stop], draft)
                start = stop
        return n_left

    def _forward(
        self,
        batch: Sequence[RunningSequence],
        inputs: Sequence[Sequence[int]],
        logits_indices: Sequence[int],
    ) -> Array | None:
        """Return the logits; None if a sequence that runs alone ended, by an error of its hook."""
        caches, hook = [sequence.cache for sequence in batch], batch[0].hook
        try:
            logits = self._model.forward(inputs, caches, logits_indices=logits_indices, hook=hook)
            check_finite(logits, self._model)
        except Exception as error:
            if not hook:
                raise
            if isinstance(error, CheckpointError):
                error = InvalidArgumentError(
                    "the logits are not numbers with these interventions; use smaller factors"
                )
            batch[0].end("cancelled", error)  # the other sequences go on
            return None
        return logits

    def _batches(self) -> Iterator[list[RunningSequence]]:
        """Group the running sequences in one batch; each sequence with interventions runs alone.

        Beside a batch, those alone have `_ALONE_SECONDS` of a step, in turns.
        """
        running = [sequence for sequence in self.running if sequence.finish_reason is None]
        together = [s for s in running if not s.request.callbacks.interventions]
        if len(together) > 1:
            together = _sort_by_slot(together)
        # An intervention must see the arrays of one sequence only.
        alone = [s for s in running if s.request.callbacks.interventions]
        if together:
            yield together
        if not alone:
            return
        deadline = time.perf_counter() + _ALONE_SECONDS
        for i, sequence in enumerate(sorted(alone, key=attrgetter("latest_pass"))):
            if together and i and time.perf_counter() > deadline:
                return
            sequence.latest_pass = time.perf_counter()
            yield [sequence]

    def _inputs(
        self, group: Sequence[RunningSequence], n_left: int
    ) -> tuple[list[RunningSequence], list[list[int]], int]:
        """Select the sequences of the next pass, with at most `n_left` tokens of prompts.

        Also drops keys of rejected draft tokens and of an interrupted step, slides full context
        windows, and computes masks and shared prefixes. A sequence whose mask or prefix takes more
        time is left out. Returns the sequences, the next ids of each, and how many tokens of
        prompts are left.
        """
        inputs: dict[int, list[int]] = {}  # by id() of the sequence
        deadline = time.perf_counter() + _MASK_SECONDS
        # The shortest prompt first: it does not wait for the chunks of long ones.
        for sequence in sorted(group, key=_cost) if len(group) > 1 else group:
            if not (_has_mask(sequence, deadline) and (n_left or sequence.has_begun)):
                continue
            sequence.drop_rejected()
            sequence.slide_window()
            n_known = sequence.cache.length
            if prefix := sequence.shared_prefix:
                with prefix.lock:
                    n_left = max(0, n_left - prefix.compute(self._model, n_left))
                    if not (prefix.is_computed and _start(sequence, prefix)):
                        continue
            elif not self._copy_prefix(sequence):
                continue
            n_copied = sequence.cache.length - n_known
            n_left = max(0, n_left - n_copied // _COPIES_PER_TOKEN)
            if (n := sequence.n_pending) > 1:
                n = min(n, n_left)
                n_left -= n
            if n:
                inputs[id(sequence)] = sequence.pending_ids()[:n]
        batch = [sequence for sequence in group if id(sequence) in inputs]
        return batch, [inputs[id(sequence)] for sequence in batch], n_left

    def _copy_prefix(self, sequence: RunningSequence) -> bool:
        """Copy keys and values from the running sequence with which a new prompt shares the most.

        Returns False if an earlier sequence will still compute more of the shared tokens: the new
        sequence then waits for the next step.
        """
        if sequence.cache.length or sequence.n_pending == 1 or not _is_shareable(sequence):
            return True
        ids = sequence.request.ids[:-1]
        earlier = takewhile(lambda other: other is not sequence, self.running)
        donors = [(common_length(ids, s.request.ids), s) for s in earlier if _is_shareable(s)]
        n_shared, donor = max(donors, key=itemgetter(0), default=(0, sequence))
        if n_shared < _MIN_SHARED:
            return True
        if donor.cache.length < n_shared:
            return False
        cache = donor.cache.copy()
        cache.truncate(n_shared)
        sequence.cache = cache
        return True

    def _admit(self) -> None:
        """Move waiting sequences to the batch until `max_running` or `cache_bytes` is reached.

        Sequences that have not begun return to the queue first: a place in the batch is of no use
        to them yet, but a later text with a shorter prompt may need it.
        """
        begun = [sequence for sequence in self.running if sequence.has_begun]
        new = [sequence for sequence in self.running if not sequence.has_begun]
        candidates = sorted([*new, *self.waiting], key=attrgetter("turn"))
        prefixes = {s.shared_prefix for s in (*self.running, *self.waiting) if s.shared_prefix}
        prefixes = {prefix for prefix in prefixes if prefix.cache is not None}
        reserved = sum(map(self._nbytes, begun))
        reserved += sum(_max_nbytes(self._model, len(prefix.ids)) for prefix in prefixes)
        running = begun.copy()
        for candidate in candidates:
            reserved += self._nbytes(candidate)
            prefix = candidate.shared_prefix
            if prefix and prefix not in prefixes:
                prefixes.add(prefix)
                reserved += _max_nbytes(self._model, len(prefix.ids))
            fits = len(running) < self._max_running and reserved <= self._cache_bytes
            if running and not fits:
                break
            running.append(candidate)
        self.running, self.waiting = running, candidates[len(running) - len(begun) :]

    def _remove_finished(self) -> None:
        finished = [s for s in (*self.running, *self.waiting) if s.finish_reason]
        if not finished:
            return
        for sequence in finished if self._free_caches else ():
            sequence.cache = self._model.new_cache()
            sequence.speculation = None
        running = [sequence for sequence in self.running if sequence.finish_reason is None]
        waiting = [sequence for sequence in self.waiting if sequence.finish_reason is None]
        finished = [*self._finished, *finished]
        self.running, self.waiting, self._finished = running, waiting, finished

    def _nbytes(self, sequence: RunningSequence) -> int:
        """Return the maximum bytes of a sequence's KV cache and its draft model's KV cache."""
        length = len(sequence.request.ids) + sequence.request.options.max_new_tokens
        nbytes = _max_nbytes(self._model, length)
        if isinstance(sequence.speculation, ModelDraft):
            nbytes += _max_nbytes(sequence.speculation.model, length)
        return nbytes


def _is_shareable(sequence: RunningSequence) -> bool:
    """Return whether keys and values depend on the prompt alone, at positions from 0."""
    return not (sequence.request.callbacks.interventions or sequence.context_start)


def _cost(sequence: RunningSequence) -> int:
    """Return how many tokens must be computed, or copied in the same time, for the next logits."""
    if prefix := sequence.shared_prefix:
        return len(prefix.ids) - prefix.n_computed + len(prefix.ids) // _COPIES_PER_TOKEN
    return sequence.n_pending


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


def _drafts(batch: Sequence[RunningSequence]) -> Sequence[Sequence[int]]:
    """Return each sequence's draft tokens.

    A batch with a prompt gets no drafts: its pass is compute-bound, so drafts would cost time.
    """
    speculating = [s for s in batch if s.speculation and s.tokens_left > 0]
    if not speculating or any(s.n_pending > 1 for s in batch):
        return [()] * len(batch)
    from gpt2np.generation.speculation import propose_drafts

    return propose_drafts(batch)


def _has_mask(sequence: RunningSequence, deadline: float) -> bool:
    """Compute the sequence's mask, at most until `deadline`; return whether the mask is ready."""
    try:
        return sequence.prepare_mask(deadline)
    except Exception as error:  # this sequence's constraint; the other sequences go on
        sequence.end("cancelled", error)
        return False


def _start(sequence: RunningSequence, prefix: SharedPrefix) -> bool:
    """Copy the shared prefix to a sequence; return whether the sequence runs."""
    try:
        prefix.copy_to(sequence)
    except Exception as error:  # this sequence's options or callbacks; the other sequences go on
        sequence.end("cancelled", error)
    return sequence.finish_reason is None


def _accept(sequence: RunningSequence, logits: Array, draft: Sequence[int]) -> None:
    n_ids = len(sequence.ids)
    try:
        sequence.accept(logits, draft)
    except Exception as error:  # this sequence's options or callbacks; the other sequences go on
        sequence.end("cancelled", error)
        sequence.error = error  # also if the sequence ended with the token its callback received
        return
    if sequence.speculation:
        sequence.speculation.update(draft, sequence.ids[n_ids:])
