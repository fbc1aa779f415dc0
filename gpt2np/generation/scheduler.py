"""Continuous batching: sequences join a batch when memory allows, and leave when they end."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import itemgetter

import numpy as np

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.generation.drafts import MAX_ROWS, best_count, min_probability
from gpt2np.generation.logits_processors import check_finite
from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import Array, common_length
from gpt2np.limits import limits
from gpt2np.model import GPT2, KVCache
from gpt2np.runtime.kv_cache import cache_nbytes

_MIN_SHARED = 16  # tokens; copying fewer keys and values saves no time
_SCORED_CHUNK = 64  # rows of logits of prompts in a pass; bounds their memory
_SLOW_LIMIT = 0.1  # seconds of a step for masks, and for interventions over a tenth of it each


def drive(
    scheduler: "Scheduler", sequences: Iterable[RunningSequence | None]
) -> Iterator[list[RunningSequence]]:
    """Run sequences to their ends; yield after each decode step those that have ended.

    Before each step, `drive` takes `sequences` up to the next None.
    """
    remaining = iter(sequences)
    has_more = True
    while has_more or scheduler.busy:
        has_more = False
        for sequence in remaining:
            if has_more := sequence is None:
                break
            scheduler.add(sequence)
        yield scheduler.step()


class Scheduler:
    """Runs the sequences of one model in batches; sequences may join at any time.

        >>> scheduler = Scheduler(model)
        >>> scheduler.add(sequence)
        >>> while scheduler.busy:
        ...     for finished in scheduler.step():
        ...         print(finished.ids)

    Sequences start in the order in which they were added. Use a scheduler from one thread only.
    Several threads may each have a scheduler for the same model.
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

        A sequence that runs alone may exceed `cache_bytes` (default: `Limits.max_cache_bytes`).
        Memory stays allocated for reuse, up to three times `cache_bytes`. With `free_caches`, the
        scheduler frees the KV cache of a sequence that ends.

        A decode step computes at most `prefill_chunk` tokens of prompts (default: no limit), or
        half as many while a sequence generates. Thus a long prompt delays the running sequences by
        at most half a chunk. For the same reason, sequences whose masks or interventions take long
        then take turns.
        """
        self.running: list[RunningSequence] = []
        self.waiting = deque[RunningSequence]()
        self._model = model
        self._max_running = max_running
        self._cache_bytes = limits().max_cache_bytes if cache_bytes is None else cache_bytes
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

    def add(self, sequence: RunningSequence) -> None:
        """Add a sequence to the queue.

        Raises:
            InvalidArgumentError: the sequence belongs to another model.
        """
        if not sequence.cache.is_from(self._model.weights):
            raise InvalidArgumentError("the sequence is another model's")
        self.waiting.append(sequence)

    @np.errstate(all="ignore")  # check_finite finds infinity and NaN
    def step(self) -> list[RunningSequence]:
        """Run one decode step: each running sequence gets one token, or more with draft tokens.

        Returns the sequences that have ended. A sequence that runs or waits ends before the step if
        it was cancelled or its deadline has passed. A sequence ends with its `error` set if the
        options forbid every next token, or the caller's code raises an exception.

        An exception that is raised here, such as Ctrl-C, ends all sequences with the text so far.

        Raises:
            CheckpointError: the logits are infinite or NaN.
        """
        try:
            return self._step()
        except BaseException as error:
            sequences = [*self.running, *self.waiting]
            for sequence in sequences:  # fast: a second Ctrl-C may come below
                sequence.cancel()
            for sequence in sequences:
                sequence.interrupt(error)
            self._remove_finished()
            raise

    def _step(self) -> list[RunningSequence]:
        # 1. Sequences that were cancelled, or whose time is up, leave; their places become free.
        self._end_cancelled()
        now = time.monotonic()
        for sequence in (*self.running, *self.waiting):
            if sequence.deadline <= now:
                sequence.end("time")
        finished = self._remove_finished()
        # 2. Waiting sequences take the free places, in the order of their arrival.
        if self.waiting:
            self._admit()
        # 3. One pass for all sequences. An intervention must see the arrays of one sequence only.
        n_left = self._prefill_chunk
        if n_left < sys.maxsize and any(sequence.n_pending == 1 for sequence in self.running):
            n_left = max(1, n_left // 2)
        group = self.running if self._prefill_chunk == sys.maxsize else self._in_turns()
        together = [s for s in group if not s.request.callbacks.interventions]
        n_left = self._run(together, n_left)
        # 4. A pass for each sequence with interventions; with chunks, only as long as a step may.
        alone = [s for s in group if s.request.callbacks.interventions]
        begun = now = time.perf_counter()
        for sequence in sorted(alone, key=_last_token_time):
            if now - begun > _SLOW_LIMIT and self._prefill_chunk < sys.maxsize:
                break
            n_left = self._run([sequence], n_left)
            sequence.step_seconds = time.perf_counter() - now
            now += sequence.step_seconds
        # 5. Sequences whose text has ended leave.
        self._end_cancelled()
        return [*finished, *self._remove_finished()]

    def _in_turns(self) -> list[RunningSequence]:
        """Return the running sequences; of those that take long alone, as many as a step may."""
        ready: set[int] = set()
        masks = steps = 0.0
        for sequence in sorted(self.running, key=_last_token_time):  # the longest wait first
            is_slow = sequence.step_seconds > _SLOW_LIMIT / 10
            if (sequence.constraint and masks > _SLOW_LIMIT) or (is_slow and steps > _SLOW_LIMIT):
                continue
            start = time.perf_counter()
            try:
                sequence.prepare_mask()
            except Exception as error:  # the pattern is too large; the other sequences go on
                sequence.interrupt(error)
                continue
            seconds = time.perf_counter() - start
            if sequence.constraint and max(seconds, sequence.step_seconds) > _SLOW_LIMIT / 10:
                sequence.drafter = None  # the masks after draft tokens are computed in the pass
            masks += seconds
            steps += sequence.step_seconds
            ready.add(id(sequence))
        return [sequence for sequence in self.running if id(sequence) in ready]

    def _run(self, group: Sequence[RunningSequence], n_left: int) -> int:
        """Run a pass with at most `n_left` tokens of prompts; return how many are left."""
        # 1. The next ids of each sequence: its last token, or a chunk of its prompt.
        batch, inputs, n_left = self._inputs(group, n_left)
        if not batch:
            return n_left
        # 2. Which logits: after the last token and each draft token. A long prompt takes several
        #    chunks, of which only the last one predicts a token.
        is_last = [len(ids) == s.n_pending for s, ids in zip(batch, inputs, strict=True)]
        drafts = propose_drafts(batch)
        n_rows: list[int] = []
        logits_indices: list[int] = []
        n_tokens = 0
        for sequence, ids, draft, predicts in zip(batch, inputs, drafts, is_last, strict=True):
            ids += draft
            n_tokens += len(ids)
            if sequence.scores_prompt:
                n_rows.append(len(ids))
            else:
                n_rows.append(1 + len(draft) if predicts else 0)
            logits_indices += range(n_tokens - n_rows[-1], n_tokens)
        # 3. One forward pass.
        logits = self._forward(batch, inputs, logits_indices)
        if logits is None:
            return n_left
        # 4. Each sequence takes its tokens from its rows of logits.
        stop = 0
        for sequence, draft, predicts, n in zip(batch, drafts, is_last, n_rows, strict=True):
            start, stop = stop, stop + n
            if sequence.scores_prompt:
                sequence.score_prompt(sequence.cache.length - n, logits[start:stop])
                start = stop - 1
            if predicts:
                _accept(sequence, logits[start:stop], draft)
        # 5. A sequence that waits for a shared prefix was not in this pass. If the pass computed
        #    the prefix, copy it now, because the sequence that holds it may leave.
        for sequence in group if len(batch) < len(group) else ():
            _copy_shared_prefix(sequence, self.running)
        return n_left

    def _forward(
        self,
        batch: Sequence[RunningSequence],
        inputs: Sequence[Sequence[int]],
        logits_indices: Sequence[int],
    ) -> Array | None:
        """Return the logits; None if a sequence that runs alone ended, by an error of its hook."""
        caches, hook = [s.cache for s in batch], batch[0].request.callbacks.interventions
        if hook and caches[0].length:
            hook = hook.after_prompt()
        try:
            logits = self._model.forward(inputs, caches, logits_indices=logits_indices, hook=hook)
            check_finite(logits, self._model)
        except Exception as error:
            if not hook:
                raise
            if isinstance(error, CheckpointError):
                text = "the logits are not numbers with these interventions; use smaller factors"
                error = InvalidArgumentError(text)
            if isinstance(error, InvalidArgumentError):
                error.param = error.param or "interventions"
            batch[0].end("cancelled", error)  # the other sequences go on
            return None
        return logits

    def _inputs(
        self, group: Sequence[RunningSequence], n_left: int
    ) -> tuple[list[RunningSequence], list[list[int]], int]:
        """Select the sequences of the next pass, with at most `n_left` tokens of prompts.

        Also copies shared prefixes. Returns the sequences, the next ids of each, and how many
        tokens of prompts are left.
        """
        selected: list[tuple[RunningSequence, list[int]]] = []
        n_scored = _SCORED_CHUNK
        for sequence in group:
            if not _copy_shared_prefix(sequence, self.running):
                continue
            n = sequence.n_pending
            if sequence.request.callbacks.interventions and n > 1:
                # A hook must see the whole prompt; one that is longer than a chunk takes it all.
                n, n_left = (n, max(0, n_left - n)) if n_left else (0, 0)
            elif n > 1 or sequence.scores_prompt:
                n = min(n, n_left, n_scored if sequence.scores_prompt else n)
                n_left -= n
                n_scored -= n if sequence.scores_prompt else 0
            if n:
                selected.append((sequence, sequence.pending_ids()[:n]))
        if len(selected) > 1:
            selected = _sort_by_slot(selected)
        return [sequence for sequence, _ in selected], [ids for _, ids in selected], n_left

    def _admit(self) -> None:
        """Move waiting sequences to the batch until `max_running` or `cache_bytes` is reached."""
        reserved = sum(map(self._nbytes, self.running))
        while self.waiting and len(self.running) < self._max_running:
            reserved += self._nbytes(self.waiting[0])
            if self.running and reserved > self._cache_bytes:
                break
            self.running.append(self.waiting[0])  # first, so that Ctrl-C finds it in a queue
            self.waiting.popleft()

    def _end_cancelled(self) -> None:
        for sequence in (*self.running, *self.waiting):
            if sequence.is_cancelled:
                sequence.end("cancelled")

    def _remove_finished(self) -> list[RunningSequence]:
        """Remove and return the sequences that have ended."""
        finished = [s for s in (*self.running, *self.waiting) if s.finish_reason]
        if finished:
            for sequence in finished if self._free_caches else ():
                sequence.cache = self._model.new_cache()
                sequence.drafter = None
            self.running = [s for s in self.running if s.finish_reason is None]
            self.waiting = deque(s for s in self.waiting if s.finish_reason is None)
        return finished

    def _nbytes(self, sequence: RunningSequence) -> int:
        """Return the maximum bytes of a sequence's KV cache."""
        length = len(sequence.request.ids) + sequence.request.options.max_new_tokens
        config = self._model.config
        return cache_nbytes(config, min(length, config.n_positions), self._model.dtype)


def _last_token_time(sequence: RunningSequence) -> float:
    return sequence.started + sequence.seconds


def _sort_by_slot(
    selected: list[tuple[RunningSequence, list[int]]],
) -> list[tuple[RunningSequence, list[int]]]:
    """Sort sequences by KV store and slot: attention reads adjacent slots in one product.

    KV stores are ordered by their first appearance, so that every run gives bit-identical results.
    """
    store_order: dict[int, int] = {}
    for sequence, _ in selected:
        store_order.setdefault(id(sequence.cache.store), len(store_order))
    caches = [sequence.cache for sequence, _ in selected]
    keys = [(store_order[id(cache.store)], cache.slot) for cache in caches]
    return [selected[i] for i in sorted(range(len(selected)), key=keys.__getitem__)]


def propose_drafts(batch: Sequence[RunningSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence, as many as should pay off.

    A pass with draft tokens has at most `MAX_ROWS` tokens, each sequence's last token included. A
    batch with a prompt gets no drafts: its pass is compute-bound, so drafts would cost time.
    """
    drafts: list[list[int]] = [[] for _ in batch]
    if len(batch) >= MAX_ROWS or any(s.n_pending > 1 or s.scores_prompt for s in batch):
        return drafts
    candidates: list[tuple[float, int, int]] = []  # -probability, length of the draft, sequence
    least = min_probability(len(batch))
    for i, sequence in enumerate(batch):
        length = min(MAX_ROWS - len(batch), sequence.tokens_left)
        if sequence.drafter and length > 0:
            drafts[i], probabilities = sequence.drafter.propose(
                sequence.request.ids, sequence.ids, length, least, sequence.model.config.vocab_size
            )
            candidates += [(-p, k, i) for k, p in enumerate(probabilities, 1)]
    candidates.sort()
    lengths = {i: length for _, length, i in candidates[: best_count(candidates, len(batch))]}
    return [draft[: lengths.get(i, 0)] for i, draft in enumerate(drafts)]


def _accept(sequence: RunningSequence, logits: Array, draft: Sequence[int]) -> None:
    n_ids, start = len(sequence.ids), time.perf_counter()
    try:
        sequence.accept(logits, draft)
    except Exception as error:  # this sequence's options or callbacks; the other sequences go on
        sequence.interrupt(error)
        sequence.error = error  # also if the sequence ended with the token its callback received
        return
    except BaseException:
        # A callback may raise after the last token: `step` then ends the sequence as interrupted.
        sequence.finish_reason = None
        raise
    sequence.step_seconds = time.perf_counter() - start
    if sequence.drafter:
        sequence.drafter.update(sequence.ids[n_ids:])


def _copy_shared_prefix(sequence: RunningSequence, running: Iterable[RunningSequence]) -> bool:
    """Copy the keys and values with which a new prompt begins, if they are known.

    The source is the request's prefix or, of the earlier sequences in `running`, the one that
    shares the most tokens. Returns False if the source has not computed them yet; the caller then
    leaves the sequence out of this pass.
    """
    request = sequence.request
    if sequence.cache.length or len(request.ids) == 1 or request.callbacks.interventions:
        return True
    ids, top = request.ids[:-1], request.options.prompt_logprobs
    earlier = takewhile(lambda other: other is not sequence, running)
    donors = [
        (common_length(ids, other.request.ids), other)
        for other in earlier
        if not other.request.callbacks.interventions
        and top in (None, other.request.options.prompt_logprobs)
    ]
    n_shared, donor = max(donors, key=itemgetter(0), default=(0, sequence))
    prefix = request.prefix if top is None else None
    if prefix and (n := min(len(prefix.ids), len(ids))) >= n_shared:
        sequence.cache = _first_tokens(prefix.cache, n)
    elif n_shared >= _MIN_SHARED:
        if donor.cache.length < n_shared:
            return False
        if top is not None:  # the last shared token's logits score the first that differs
            n_shared -= 1
            sequence.prompt_logprobs = donor.prompt_logprobs[:n_shared]
        sequence.cache = _first_tokens(donor.cache, n_shared)
    return True


def _first_tokens(cache: KVCache, n: int) -> KVCache:
    copy = cache.copy()
    copy.truncate(n)
    return copy
