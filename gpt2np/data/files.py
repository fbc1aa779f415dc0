"""Safe reading of untrusted files, and atomic writing."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument, error_reason
from gpt2np.limits import how_to_raise, limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, BinaryIO

STDIN_PREFIX = "gpt2np-stdin-"
"""Prefix of the name of a temporary folder that holds a copy of standard input."""


def file_name(path: Path) -> str:
    """Return the name of an input file for results; - is standard input."""
    return "-" if path.parent.name.startswith(STDIN_PREFIX) else f"{path}"


def as_path(path: str | Path) -> Path:
    """Convert an argument to a path; `~` becomes the home folder.

    Raises:
        InvalidArgumentError: `path` is neither a text nor a path.
    """
    check_argument(isinstance(path, (str, os.PathLike)), "path", path, "a text or a Path")
    return Path(path).expanduser()


def check_target(
    path: Path,
    suffixes: Sequence[str] = (),
    *,
    force: bool = True,
    inputs: Iterable[Path | None] = (),
) -> None:
    """Check that a file can be written to `path`; call this before long work.

    Raises InvalidArgumentError if the suffix of `path` is not one of `suffixes`; `path` is a
    folder, a device, a broken link or one of `inputs`; its folder does not exist; or the file
    exists and `force` is false.
    """
    if str(path) == "-":
        raise InvalidArgumentError("- is standard output, but this result needs a file; name one")
    if suffixes and path.suffix.lower() not in suffixes:
        raise InvalidArgumentError(
            f"{path}: the suffix selects the format; use one of {', '.join(suffixes)}"
        )
    if not path.parent.is_dir():
        if path.parent.exists():
            raise InvalidArgumentError(f"{path.parent} is a file, not a folder")
        raise InvalidArgumentError(f"the folder {path.parent} does not exist; create it first")
    if path.is_symlink() and not path.exists():
        raise InvalidArgumentError(f"{path} is a broken link; remove it or choose another name")
    if not path.exists():
        return
    if not path.is_file():
        raise InvalidArgumentError(f"{path} is not a file; choose another name")
    if any(file and file.exists() and path.samefile(file) for file in inputs):
        raise InvalidArgumentError(f"the input and the output are the same file, {path}")
    if not force:
        raise InvalidArgumentError(f"{path} exists already; give `force=True` to overwrite it")


def read_bytes(path: Path, error: type[GPT2NPError], *, max_bytes: int | None = None) -> bytes:
    """Read a file, after a check of its size.

    Raises `error` if the file can't be read, or has more than `max_bytes`.
    """
    check_readable(path, error)
    with reading(path, error):
        if max_bytes is not None and (size := path.stat().st_size) > max_bytes:
            raise error(f"{path} has {size:,} bytes; expected at most {max_bytes:,}")
        return path.read_bytes()


def check_readable(path: Path, error: type[GPT2NPError]) -> None:
    """Raise `error` if `path` is not a file that this process can read.

    Call this before `safetensors.safe_open`, which reports any file that it can't open as missing.
    """
    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise error(f"{path} is not a file")
    with reading(path, error):
        path.open("rb").close()


@contextmanager
def reading(path: Path, error: type[GPT2NPError]) -> Iterator[None]:
    """Raise `error`, which names the file, in the place of an OSError of the `with` block."""
    try:
        yield
    except OSError as problem:
        raise error(f"cannot read {path}: {error_reason(problem)}") from problem


def bounded_lines(file: BinaryIO, name: object) -> Iterator[bytes]:
    """Yield the lines of a file; errors show `name`.

    Raises InvalidArgumentError for a line of more than `Limits.max_line_bytes`.
    """
    longest, number = limits().max_line_bytes, 1
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise InvalidArgumentError(
                f"{name}, line {number}: more than {longest:,} bytes; "
                f"{how_to_raise('max_line_bytes')}"
            )
        yield line
        number += 1


def read_json_object(
    path: Path, error: type[GPT2NPError], *, max_bytes: int | None = None
) -> dict[str, Any]:
    """Read a JSON object from a UTF-8 file.

    Raises `error` if the file can't be read, has more than `max_bytes`, or holds no JSON object.
    """
    import json  # only here: many callers of this module read no JSON

    try:
        text = read_bytes(path, error, max_bytes=max_bytes).decode("utf-8-sig")
        content = json.loads(text)
    except GPT2NPError:  # some are also ValueErrors
        raise
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is damaged: not JSON ({problem})") from problem
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: expected a JSON object")
    return content


def atomic_write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8 to the file `path`, atomically; see `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def followed(path: Path) -> Path:
    """Return the target of a link; return any other path unchanged."""
    return path.resolve() if path.is_symlink() else path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path in the folder of `path`; after the `with` block, rename the new file to `path`.

    If `path` is a link, the link stays, and the new file replaces the link's target. If writing
    fails, an existing file at `path` is unchanged.

    Raises:
        WriteError: writing fails, or `path` is a device or pipe.
    """
    with writing(path):
        target = followed(path)
        # A name of its own for each thread; tempfile would withhold the file from other users.
        temporary = target.with_name(f".{os.urandom(8).hex()}.tmp")
        try:
            if target.exists() and not target.is_file():
                raise OSError(errno.EEXIST, "not a file")
            yield temporary
            temporary.replace(target)
        finally:
            with suppress(OSError):  # no such folder
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; after the `with` block, rename it to `path`.

    An empty folder at `path` is replaced. If writing fails, nothing remains.

    Raises:
        WriteError: writing fails, or `path` is not a new or empty folder.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with writing(path, within=temporary):
            temporary.mkdir(parents=True)
            yield temporary
            if path.is_dir():
                path.rmdir()
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class WriteError(OSError):
    """An output can't be written; the error's file name is the output."""


@contextmanager
def writing(path: Path, *, within: Path | None = None) -> Iterator[None]:
    """Raise a WriteError, which names the output `path`, for an OSError of the `with` block.

    With `within`, errors about files outside this folder stay as they are.
    """
    try:
        yield
    except OSError as error:
        name = error.filename2 or error.filename  # a copy names its source first
        if within and name and not Path(os.fsdecode(name)).is_relative_to(within):
            raise
        # NumPy's error has no number, and tells only how much of an array was written.
        raise WriteError(error.errno or errno.EIO, error_reason(error), str(path)) from error
