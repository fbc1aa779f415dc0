"""Streams for asyncio: all streams of one model run in one batch, on one background thread."""

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

_Deliver = Callable[["str | Exception | None"], None]


class AsyncEngine:
    """Runs the streams of one model on a background thread, which ends when no stream is left.

    The methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[tuple[TextStream, _Deliver]] = deque()
        self._cancelled: deque[TextStream] = deque()
        self._thread_runs = False

    def add(self, stream: TextStream, deliver: _Deliver) -> None:
        """Start a stream. `deliver` receives pieces of text and, at the end, None or an error.

        `deliver` is called on the background thread.
        """
        with self._lock:
            self._new.append((stream, deliver))
            if not self._thread_runs:
                self._thread_runs = True
                threading.Thread(
                    target=self._run, args=[stream.model], name="gpt2np-async", daemon=True
                ).start()

    def cancel(self, stream: TextStream) -> None:
        """End a stream before the next decode step."""
        self._cancelled.append(stream)

    def _run(self, model: GPT2) -> None:
        scheduler = Scheduler(model)
        receivers: dict[TextStream, _Deliver] = {}
        while True:
            with self._lock:
                while self._new:
                    stream, deliver = self._new.popleft()
                    receivers[stream] = deliver
                    scheduler.add(stream.sequence)
                if not receivers:
                    self._thread_runs = False
                    return
            while self._cancelled:
                self._cancelled.popleft().sequence.end("cancelled")
            error: Exception | None = None
            try:
                scheduler.step()
            except Exception as failure:  # of the model: no stream can go on
                error = failure
                for stream in receivers:
                    stream.sequence.end("cancelled", failure)
                scheduler = Scheduler(model)
            for stream, deliver in list(receivers.items()):
                if piece := stream.new_text():
                    deliver(piece)
                if not stream.running:
                    deliver(error or stream.sequence.error)
                    del receivers[stream]


_engines: WeakKeyDictionary[GPT2, AsyncEngine] = WeakKeyDictionary()


async def run_async(stream: TextStream) -> AsyncIterator[str]:
    """Yield the pieces of a stream's text. The stream is cancelled if the caller stops early."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[str | Exception | None] = asyncio.Queue()
    engine = _engines.setdefault(stream.model, AsyncEngine())
    engine.add(stream, lambda piece: _call_in(loop, pieces, piece))
    try:
        while isinstance(piece := await pieces.get(), str):
            yield piece
        if piece is not None:
            raise piece
    finally:
        if stream.running:
            engine.cancel(stream)


def _call_in(
    loop: asyncio.AbstractEventLoop,
    pieces: asyncio.Queue[str | Exception | None],
    piece: str | Exception | None,
) -> None:
    if not loop.is_closed():  # the program may have ended
        loop.call_soon_threadsafe(pieces.put_nowait, piece)
