"""Texts from the command line, files and standard input: UTF-8, or one clear line."""

import codecs
import os
import sys
from pathlib import Path

from gpt2np.cli.streams import notice
from gpt2np.errors import InvalidArgumentError


def argument(text: str, name: str) -> str:
    """An argument as UTF-8, also where Python has decoded the command line otherwise."""
    return decoded(os.fsencode(text), name, with_mark=True)


def standard_input(what: str) -> str:
    """All of standard input, without one newline at its end; `what` is asked for at a terminal."""
    if sys.stdin.isatty():
        notice(f"type the {what}; end it with Ctrl-D on a line of its own")
    return without_newline(decoded(sys.stdin.buffer.read(), "standard input"))


def file_content(file: Path) -> str:
    """The text of the file that --file names."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"can't read --file {file}: {error.strerror}") from error
    return decoded(data, str(file))


def without_newline(text: str) -> str:
    """`text` without one newline at its end, which editors and `echo` put there."""
    return text.removesuffix("\n").removesuffix("\r")


def decoded(data: bytes, source: str, *, with_mark: bool = False) -> str:
    """`data` as text; without a byte-order mark, unless `with_mark`.

    Raises:
        InvalidArgumentError: names `source` and the first byte that is not UTF-8.
    """
    try:
        return (data if with_mark else data.removeprefix(codecs.BOM_UTF8)).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{source} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset "
            f"{error.start}; convert it to UTF-8 first"
        ) from error
