"""Streams that share one batch: a background thread runs all streams of one model."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from gpt2np.generation.scheduler import Scheduler
from gpt2np.model import GPT2

if TYPE_CHECKING:
    from gpt2np.generation.streaming import TextStream

_PREFILL_CHUNK = 256  # tokens; larger chunks are hardly faster
_Notify = Callable[["TextStream"], object]


class AsyncEngine:
    """Runs the streams of one model on a background thread, which ends when no stream is left.

    The methods may be called from any thread.
    """

    def __init__(
        self,
        max_running: int = 16,
        cache_bytes: int | None = None,
        on_step: Callable[[Scheduler], object] | None = None,
    ) -> None:
        """Create an engine that runs up to `max_running` streams at a time.

        `cache_bytes` limits the streams' KV caches; see `Scheduler`. `on_step` is called on the
        engine's thread after each decode step and its notifications.
        """
        self._max_running = max_running
        self._cache_bytes = cache_bytes
        self._on_step = on_step
        self._lock = threading.Lock()
        self._new: deque[tuple[TextStream, _Notify]] = deque()
        self._cancelled: deque[tuple[TextStream, Exception | None]] = deque()
        self._thread_runs = False

    def add(self, stream: TextStream, notify: _Notify) -> None:
        """Start a stream. `notify` is called on the engine's thread after each decode step.

        The last call comes when the stream has ended.
        """
        with self._lock:
            self._new.append((stream, notify))
            if not self._thread_runs:
                self._thread_runs = True
                threading.Thread(
                    target=self._run, args=[stream.model], name="gpt2np-engine", daemon=True
                ).start()

    def cancel(self, stream: TextStream, error: Exception | None = None) -> None:
        """End a stream before the next decode step, with an error if one is given."""
        self._cancelled.append((stream, error))

    def _new_scheduler(self, model: GPT2) -> Scheduler:
        return Scheduler(model, self._max_running, self._cache_bytes, prefill_chunk=_PREFILL_CHUNK)

    def _run(self, model: GPT2) -> None:
        scheduler = self._new_scheduler(model)
        listeners: dict[TextStream, _Notify] = {}
        while True:
            with self._lock:
                while self._new:
                    stream, notify = self._new.popleft()
                    listeners[stream] = notify
                    scheduler.add(stream.sequence)
                if not listeners:
                    self._thread_runs = False
                    return
            while self._cancelled:
                stream, error = self._cancelled.popleft()
                stream.sequence.end("cancelled", error)
            try:
                scheduler.step()
            except Exception as failure:  # of the model: no stream can go on
                for stream in listeners:
                    stream.sequence.end("cancelled", failure)
                scheduler = self._new_scheduler(model)
            for stream, notify in list(listeners.items()):
                notify(stream)
                if not stream.running:
                    del listeners[stream]
            if self._on_step:
                self._on_step(scheduler)


_engines: WeakKeyDictionary[GPT2, AsyncEngine] = WeakKeyDictionary()


async def run_async(stream: TextStream) -> AsyncIterator[str]:
    """Yield the pieces of a stream's text. The stream is cancelled if the caller stops early."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    engine = _engines.setdefault(stream.model, AsyncEngine())

    def deliver(stream: TextStream) -> None:
        piece, is_last = stream.new_text(), not stream.running
        for item in [piece] * bool(piece) + [None] * is_last:
            call_in(loop, pieces.put_nowait, item)

    engine.add(stream, deliver)
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        if stream.sequence.error:
            raise stream.sequence.error
    finally:
        if stream.running:
            engine.cancel(stream)


def call_in(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> None:
    """Call a function in the thread of an event loop, unless the loop has been closed."""
    if not loop.is_closed():  # the program may have ended
        loop.call_soon_threadsafe(function, *args)
