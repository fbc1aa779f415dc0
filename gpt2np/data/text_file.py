"""Reading files that may be none, and writing so that nobody ever finds half of one."""

from __future__ import annotations

import os
from pathlib import Path

from gpt2np.errors import GPT2NPError


def check_is_file(path: Path, error: type[GPT2NPError]) -> None:
    """Raises `error` for a folder, a pipe or a device: from these one could read forever.

    Where there is nothing, opening it says why.
    """
    if path.exists() and not path.is_file():
        raise error(f"{path} is not a file")


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8 to a temporary file beside `path`, then rename it.

    Raises:
        OSError: the folder can't be written to; a file that was there is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
