"""A text on stdout while it is generated; at Ctrl-C, what has been generated has been shown."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2np.generation.streaming import TextStream


def write_live(stream: "TextStream") -> None:
    """Generate a text, and write it as it comes. Needs `ctrl_c` as the handler of SIGINT.

    Raises:
        KeyboardInterrupt: at Ctrl-C. The stream is cancelled, and what there is of it is written.
        InvalidArgumentError: every token is ruled out. What came before is written.
    """
    try:
        while stream.running:
            stream.step()
            _write_new(stream)
    except KeyboardInterrupt:
        stream.sequence.end("cancelled")
        _write_new(stream)
        raise
    if stream.sequence.error:
        raise stream.sequence.error


def _write_new(stream: "TextStream") -> None:
    with ctrl_c.held():
        sys.stdout.write(stream.new_text())
        sys.stdout.flush()


class CtrlC:
    """A handler of SIGINT: raises KeyboardInterrupt, but not in the midst of `held`."""

    def __init__(self) -> None:
        self._holding = self._waiting = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._waiting:
            self._waiting = True
        else:  # the second time even there, as nobody may be reading
            signal.default_int_handler(number, frame)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What must not be left half-done."""
        self._holding = True
        try:
            yield
        finally:
            waiting, self._holding, self._waiting = self._waiting, False, False
        if waiting:
            raise KeyboardInterrupt


ctrl_c = CtrlC()
