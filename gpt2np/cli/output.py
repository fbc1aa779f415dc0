"""Output of the commands: standard streams and messages."""

from __future__ import annotations

import contextlib
import os
import sys
from io import UnsupportedOperation

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from gpt2np.tokenizer.display import Style


def prepare_streams() -> None:
    """Set all streams to UTF-8, and outputs to line feeds; replace closed streams.

    A byte of a path that is not UTF-8 is printed as `\\udcff`: in JSON, an escape from which Python
    reads the same path. A closed stdin or stderr becomes the null device. A closed stdout becomes a
    stream on which every write fails, because the result would be lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            stream = open(os.open(os.devnull, flags), mode, encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, stream)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
        elif hasattr(stream, "reconfigure"):
            with contextlib.suppress(UnsupportedOperation):  # this program has read from it before
                stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def discard_stdout() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit cannot fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_stderr(text: str) -> None:
    """Print a message to stderr; ignore a failure to write it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def terminal_style() -> Style:
    """Return the style of text on stdout: with color at a terminal, unless NO_COLOR is set."""
    from gpt2np.tokenizer.display import Style

    return Style(color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
