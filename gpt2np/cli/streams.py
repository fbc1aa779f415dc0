"""The three standard streams, as every command needs them."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than all of this module
if TYPE_CHECKING:
    from typing import TextIO


def prepare_streams() -> None:
    """Make stdout and stderr UTF-8 on every platform.

    A stream that was closed leads nowhere, but for stdout: there, whatever is written fails, as the
    result would be lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            stream = open(os.open(os.devnull, opened), mode, encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, stream)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


def notice(text: str) -> None:
    """Tell the user something on stderr; if nobody listens there, that is no reason to fail."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Tell of a warning in one line; in place of `warnings.showwarning`."""
    notice(f"warning: {message}")


def drop_stdout() -> None:
    """Send what is still to be flushed nowhere: Python would fail on it once more at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
