"""Input of UTF-8 text from command-line arguments, files and standard input."""

import argparse
import atexit
import codecs
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpt2np.cli.output import print_stderr
from gpt2np.data.text import describe_decode_error
from gpt2np.errors import InvalidArgumentError


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT and --file."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="Prompt; - reads standard input")
    add(
        "--file",
        type=Path,
        metavar="FILE",
        help="Read the prompt from a UTF-8 text file; - is standard input",
    )


def read_prompt(args: argparse.Namespace) -> str:
    """Read the prompt from PROMPT, --file or standard input.

    Raises:
        InvalidArgumentError: there is no prompt or more than one, or the prompt is not UTF-8.
    """
    if args.file is not None:
        if args.prompt is not None:
            raise InvalidArgumentError("give either PROMPT or --file, not both")
        return strip_newline(read_text_file(args.file))
    if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()):
        return read_stdin("prompt")
    if args.prompt is None:
        raise InvalidArgumentError("no prompt; give PROMPT, --file FILE, or - for standard input")
    return decode_argument(args.prompt, "PROMPT")


def decode_argument(text: str, name: str) -> str:
    """Decode a command-line argument as UTF-8 in every locale.

    Raises:
        InvalidArgumentError: the argument is not UTF-8; the message contains `name`.
    """
    return decode_utf8(os.fsencode(text), name, keep_bom=True)


def read_stdin(kind: str) -> str:
    """Read standard input and strip one trailing newline; at a terminal, ask for the `kind`."""
    if sys.stdin.isatty():
        print_stderr(f"type the {kind}; press Ctrl-D on an empty line to end it")
    return strip_newline(decode_utf8(sys.stdin.buffer.read(), "standard input"))


def read_text_file(file: Path) -> str:
    """Read the file that --file names; - is standard input.

    Raises:
        InvalidArgumentError: the file cannot be read, or is not UTF-8.
    """
    if file == Path("-"):
        return decode_utf8(sys.stdin.buffer.read(), "standard input")
    if file == Path():
        raise InvalidArgumentError("--file is empty or the current folder; name a file")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read --file {file}: {error.strerror}") from error
    return decode_utf8(data, str(file))


def spool_stdin(path: str | Path) -> Path:
    """Return `path`; for -, copy standard input to a temporary file, which is removed at exit.

    Some readers read a file several times, or need its size.
    """
    if str(path) != "-":
        return Path(path)
    folder = Path(tempfile.mkdtemp(prefix="gpt2np-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with (folder / "stdin.txt").open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return folder / "stdin.txt"


def check_field(field: str, files: Iterable[Path]) -> None:
    """Raise InvalidArgumentError if --field has no effect on `files`."""
    if field != "text" and not any(".jsonl" in file.suffixes for file in files):
        raise InvalidArgumentError("--field is for .jsonl files; there is none to read")


def strip_newline(text: str) -> str:
    """Strip one trailing newline, which editors and `echo` add."""
    return text.removesuffix("\n").removesuffix("\r")


def decode_utf8(data: bytes, source: str, *, keep_bom: bool = False) -> str:
    """Decode UTF-8. Strip the byte-order mark unless `keep_bom` is true.

    Raises:
        InvalidArgumentError: the data is not UTF-8; the message names `source` and the first
            invalid byte.
    """
    try:
        return (data if keep_bom else data.removeprefix(codecs.BOM_UTF8)).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{describe_decode_error(source, error)}; convert it to UTF-8 first"
        ) from error
