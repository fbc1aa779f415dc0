"""The engine of one model: a thread that runs all sequences in one batch, with queues of updates.

`async for`, `LanguageModel.agenerate` and the server read from such queues.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence
from gpt2np.model import GPT2

_PREFILL_CHUNK = 256  # tokens; larger chunks are hardly faster


@dataclass(frozen=True)
class Update:
    """What a decode step has added to a sequence.

    Attributes:
        sequence: the sequence.
        text: new text; ends at a character boundary.
        ids: new token ids.
        logprobs: the log probability of each of `ids`, if requested.
        finish_reason: why the sequence has ended; None while the sequence runs.
        stop_reason: see `Completion.stop_reason`.
    """

    sequence: RunningSequence
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    stop_reason: str | int | None

    @property
    def index(self) -> int:
        """The index of the continuation; see `Request.index`."""
        return self.sequence.request.index


_Queue = asyncio.Queue[list[Update]]


@dataclass
class _Entry:
    """A sequence of the engine, its reader's queue, and how many ids the reader knows."""

    sequence: RunningSequence
    place: int  # in a request
    loop: asyncio.AbstractEventLoop  # in whose thread the queue may change
    queue: _Queue
    every_step: bool
    n_ids: int

    def new_update(self) -> Update | None:
        """Return what is new since the last call; None for nothing."""
        sequence, start = self.sequence, self.n_ids
        reason, ids = sequence.finish_reason, sequence.ids[start:]
        if not (ids or reason):
            return None
        self.n_ids += len(ids)
        logprobs, stop_reason = sequence.logprobs[start:], sequence.stop_reason
        return Update(sequence, sequence.new_text(), ids, logprobs, reason, stop_reason)


class AsyncEngine:
    """Runs the sequences of one model on a thread of its own, which ends when none is left.

    The methods may be called from any thread.
    """

    def __init__(
        self,
        max_running: int = 16,
        cache_bytes: int | None = None,
        on_step: Callable[[Scheduler, Sequence[Update]], object] | None = None,
    ) -> None:
        """Create an engine that runs up to `max_running` sequences at a time.

        `cache_bytes` limits the KV caches; see `Scheduler`. `on_step` is called on the engine's
        thread after each decode step, with the step's updates, before their readers get them.
        """
        self._max_running = max_running
        self._cache_bytes = cache_bytes
        self._on_step = on_step
        self._lock = threading.Lock()
        self._new: deque[_Entry] = deque()
        self._thread_runs = False

    async def run(
        self, model: GPT2, sequences: Sequence[RunningSequence], every_step: bool = True
    ) -> AsyncGenerator[list[Update], None]:
        """Run sequences of the engine's model; yield the updates since the last time.

        Without `every_step`, each sequence has one update, at its end. Sequences that still run
        when the caller stops reading are cancelled.

        Raises:
            Exception: the error of a sequence.
        """
        queue, loop = _Queue(), asyncio.get_running_loop()
        entries = [
            _Entry(sequence, place, loop, queue, every_step, len(sequence.ids))
            for place, sequence in enumerate(sequences)
        ]
        with self._lock:
            self._new += entries
            if entries and not self._thread_runs:
                self._thread_runs = True
                thread = threading.Thread(target=self._run, args=[model], daemon=True)
                thread.name = "gpt2np-engine"
                thread.start()
        n_running = len(sequences)
        try:
            while n_running:
                updates = await queue.get()
                while not queue.empty():
                    updates += queue.get_nowait()
                n_running -= sum(update.finish_reason is not None for update in updates)
                yield updates
                for update in updates:
                    if update.finish_reason and update.sequence.error:
                        raise update.sequence.error
        finally:
            for sequence in sequences:
                sequence.cancel()

    def _new_scheduler(self, model: GPT2) -> Scheduler:
        return Scheduler(model, self._max_running, self._cache_bytes, prefill_chunk=_PREFILL_CHUNK)

    def _run(self, model: GPT2) -> None:
        scheduler, entries = self._new_scheduler(model), list[_Entry]()
        while True:
            with self._lock:
                while self._new:
                    entries.append(self._new.popleft())
                    scheduler.add(entries[-1].sequence, entries[-1].place)
                if not entries:
                    self._thread_runs = False
                    return
            try:
                scheduler.step()
            except Exception as failure:  # of the model: no sequence can go on
                for entry in entries:
                    entry.sequence.end("cancelled", failure)
                scheduler = self._new_scheduler(model)
            new = [(entry, update) for entry in entries if (update := entry.new_update())]
            ended = {id(update.sequence) for _, update in new if update.finish_reason}
            entries = [entry for entry in entries if id(entry.sequence) not in ended]
            if self._on_step:
                self._on_step(scheduler, [update for _, update in new])
            _deliver(new)


def _deliver(new: Sequence[tuple[_Entry, Update]]) -> None:
    """Put the updates of a step in the readers' queues; wake each event loop once."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, dict[_Queue, list[Update]]](dict)
    for entry, update in new:
        if update.finish_reason or entry.every_step:
            by_loop[entry.loop].setdefault(entry.queue, []).append(update)
    for loop, by_queue in by_loop.items():
        if not loop.is_closed():  # the program may have ended
            loop.call_soon_threadsafe(_put, by_queue)


def _put(by_queue: Mapping[_Queue, list[Update]]) -> None:
    for queue, updates in by_queue.items():
        queue.put_nowait(updates)


_engines: WeakKeyDictionary[GPT2, AsyncEngine] = WeakKeyDictionary()


def engine_of(model: GPT2) -> AsyncEngine:
    """Return the engine that all asyncio streams of a model share."""
    return _engines.setdefault(model, AsyncEngine())
