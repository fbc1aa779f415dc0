"""The engine of one model: a thread that runs all sequences in one batch, with queues of updates.

`async for`, `LanguageModel.agenerate` and the server read from such queues.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.generation.complete import join_continuations
from gpt2np.generation.completion import Completion, FinishReason
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler, drive
from gpt2np.generation.sequence import RunningSequence, start_sequences
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


_Queue = asyncio.Queue[Update]


@dataclass
class _Entry:
    """A sequence of the engine, its reader's queue, and how many ids the reader knows."""

    sequence: RunningSequence
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

    def last_update(self, failure: BaseException) -> Update:
        """End the sequence with an error, if it runs; return its last update."""
        sequence, error = self.sequence, failure
        if not isinstance(error, Exception):  # in another task it would mean something else
            error = GPT2NPError(f"a {type(failure).__name__} has ended the generation")
            error.__cause__ = failure
        with suppress(BaseException):
            sequence.interrupt(failure)
            if sequence.finish_reason != "cancelled" and (update := self.new_update()):
                return update  # the text had ended before the failure
        sequence.finish_reason, sequence.error = "cancelled", sequence.error or error
        return Update(sequence, "", [], [], "cancelled", None)


class AsyncEngine:
    """Runs the sequences of one model on a thread of its own, which ends when none is left.

    The methods may be called from any thread. A failure on the thread ends the texts that run, and
    their readers get the error; later texts run as before.
    """

    def __init__(
        self,
        max_running: int = 16,
        on_step: Callable[[Scheduler, Sequence[Update]], object] | None = None,
    ) -> None:
        """Create an engine that runs up to `max_running` sequences at a time.

        `on_step` is called on the engine's thread after each decode step, with the step's updates,
        before their readers get them.
        """
        self._max_running = max_running
        self._on_step = on_step
        self._lock = threading.Lock()
        self._new: deque[_Entry] = deque()
        self._thread: threading.Thread | None = None  # set while it takes entries

    @property
    def is_running(self) -> bool:
        """Whether the engine's thread runs sequences."""
        return self._thread is not None

    async def run(
        self, model: GPT2, sequences: Sequence[RunningSequence], every_step: bool = True
    ) -> AsyncGenerator[list[Update], None]:
        """Run sequences of the engine's model; yield the updates since the last time.

        Without `every_step`, each sequence has one update, at its end. Sequences that still run
        when the caller stops reading are cancelled.

        Raises:
            InvalidArgumentError: the call comes from a callback on the engine's thread.
            Exception: the error of a sequence.
        """
        queue, loop = _Queue(), asyncio.get_running_loop()
        n_running = len(sequences)
        try:
            with self._lock:
                if self._thread is threading.current_thread():
                    raise InvalidArgumentError(
                        "a callback cannot wait for a text of the same model; call generate instead"
                    )
                if sequences and not self._thread:
                    scheduler = Scheduler(model, self._max_running, prefill_chunk=_PREFILL_CHUNK)
                    thread = threading.Thread(target=self._run, args=[scheduler], daemon=True)
                    thread.name = "gpt2np-engine"
                    thread.start()
                    self._thread = thread
                self._new += [
                    _Entry(sequence, loop, queue, every_step, len(sequence.ids))
                    for sequence in sequences
                ]
            while n_running:
                updates = [await queue.get()]
                while not queue.empty():
                    updates.append(queue.get_nowait())
                n_running -= sum(update.finish_reason is not None for update in updates)
                yield updates
                for update in updates:
                    if update.finish_reason and update.sequence.error:
                        raise update.sequence.error
        finally:
            for sequence in sequences:
                sequence.cancel()

    def _run(self, scheduler: Scheduler) -> None:
        """Run the thread until no entry is left. A failure ends the texts that run."""
        entries: list[_Entry] = []
        while True:
            try:
                for _ in drive(scheduler, self._arrivals(entries)):
                    if not entries:  # the thread has given up its place; another may run
                        return
                    new = [(entry, update) for entry in entries if (update := entry.new_update())]
                    if self._on_step:
                        self._on_step(scheduler, [update for _, update in new])
                    _deliver(new)
                    ended = {id(update.sequence) for _, update in new if update.finish_reason}
                    entries[:] = [entry for entry in entries if id(entry.sequence) not in ended]
            except BaseException as failure:  # also SystemExit in a callback: no reader may hang
                new = [(entry, entry.last_update(failure)) for entry in entries]
                entries.clear()
                if self._on_step:
                    with suppress(BaseException):
                        self._on_step(scheduler, [update for _, update in new])
                _deliver(new)

    def _arrivals(self, entries: list[_Entry]) -> Iterator[RunningSequence | None]:
        """Move new entries to `entries`; yield their sequences, and None before each step."""
        while True:
            with self._lock:
                new = [*self._new]
                self._new.clear()
                entries += new
                if not entries:
                    self._thread = None
                    return
            yield from (entry.sequence for entry in new)
            yield None


def _deliver(new: Sequence[tuple[_Entry, Update]]) -> None:
    """Put updates in the readers' queues; wake each event loop once."""
    new = [(entry, update) for entry, update in new if update.finish_reason or entry.every_step]
    for loop in {entry.loop for entry, _ in new}:
        updates = [(entry, update) for entry, update in new if entry.loop is loop]
        try:
            loop.call_soon_threadsafe(_put, updates)
        except RuntimeError:  # the loop is closed, so nobody reads
            for entry, _ in updates:
                entry.sequence.cancel()


def _put(updates: Sequence[tuple[_Entry, Update]]) -> None:
    for entry, update in updates:
        entry.queue.put_nowait(update)


_engines: WeakKeyDictionary[GPT2, AsyncEngine] = WeakKeyDictionary()


def engine_of(model: GPT2) -> AsyncEngine:
    """Return the engine that all asyncio streams of a model share."""
    return _engines.setdefault(model, AsyncEngine())


def _forget_engines() -> None:
    """Start afresh in a forked process, which lacks the threads of its parent."""
    global _engines
    _engines = WeakKeyDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_engines)


async def agenerate(model: GPT2, request: Request) -> Completion:
    """Complete a request; see `LanguageModel.agenerate`."""
    sequences = start_sequences(model, request)
    async for _ in engine_of(model).run(model, sequences, every_step=False):
        pass
    return join_continuations(sequences)
