"""Lines → what the user says, which may have several, or a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FENCE = '"""'

ReadLine = Callable[[bool], str | None]
"""Gives a line without its end, None after the last; True if it goes on with an entry."""


class Entry(NamedTuple):
    """A text, or a command with its /."""

    text: str
    is_command: bool = False


def read_entry(read_line: ReadLine) -> Entry | None:
    """The next entry; None at the end of the input.

    A line that begins with / is a command; // stands for a / that is none. A backslash at a line's
    end joins the next line to it, with a line end between them. What stands between two fences may
    have any number of lines. The end of the input ends a text, too.
    """
    line = read_line(False)
    if line is None:
        return None
    if line.startswith("/") and not line.startswith("//"):
        return Entry(line, is_command=True)
    if line.lstrip().startswith(FENCE):
        return Entry(_fenced(line.lstrip().removeprefix(FENCE), read_line))
    return Entry(_continued(line[1:] if line.startswith("//") else line, read_line))


def _continued(line: str, read_line: ReadLine) -> str:
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        following = read_line(True)
        if following is None:
            break
        lines.append(following)
    return "\n".join(lines)


def _fenced(line: str | None, read_line: ReadLine) -> str:
    lines: list[str] = []
    fence = ""
    while line is not None and not fence:
        text, fence, _ = line.partition(FENCE)
        lines.append(text)
        line = None if fence else read_line(True)
    first = 0 if lines[0] else 1  # a line that holds nothing but a fence is none of the text
    last = len(lines) - 1 if fence and not lines[-1] else len(lines)
    return "\n".join(lines[first:last])
