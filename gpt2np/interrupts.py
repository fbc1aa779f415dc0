"""Delay signals while state changes, and garbage collection while many objects are created."""

from __future__ import annotations

import gc
import signal
import threading
from contextlib import contextmanager

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any

_waiting: list[int] = []  # signals that wait for the end of an import


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; within an import, send the signal again 10 ms later.

    Imports may swallow the exception (finalizers, locks of modules), or raise an ImportError for it
    (NumPy's C extensions). A second signal in the meantime raises at once: an import may hang.
    """
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    if frame is None or _waiting:
        raise KeyboardInterrupt
    _waiting.append(number)
    threading.Timer(0.01, _send_again).start()


def _send_again() -> None:
    if hasattr(signal, "pthread_kill"):  # wakes the main thread if a call blocks it
        signal.pthread_kill(threading.main_thread().ident or 0, _waiting.pop())
    else:
        signal.raise_signal(_waiting.pop())


@contextmanager
def held_signals(
    numbers: Iterable[int] = range(1, signal.NSIG), *, may_hang: bool = False
) -> Iterator[None]:
    """Call the handlers of signals (default: all) after the `with` block.

    If the block `may_hang`, a second signal of the same number is handled at once. Python calls
    handlers on the main thread, so nothing is held on other threads. Blocking the signals would not
    be enough: another thread can receive them for the main thread.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        if may_hang and number in received:
            received.remove(number)
            handlers[number](number, frame)
        else:
            received.append(number)

    try:
        for number in numbers:
            if callable(handler := signal.getsignal(number)):
                try:
                    signal.signal(number, receive)
                except ValueError:  # not the main thread
                    break
                handlers[number] = handler
        yield
    finally:
        for number, handler in reversed(handlers.items()):
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would scan all objects repeatedly and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
