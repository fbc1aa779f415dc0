"""Input of UTF-8 text from command-line arguments, files and standard input."""

import argparse
import codecs
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from gpt2np.cli.output import print_stderr
from gpt2np.data.text import describe_decode_error
from gpt2np.errors import InvalidArgumentError
from gpt2np.limits import how_to_raise, limits


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT and --file."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="Prompt; - reads standard input")
    add("--file", type=Path, metavar="FILE", help="Read the prompt from a UTF-8 text file")


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
    return strip_newline(decode_utf8(_read(sys.stdin.buffer, "standard input"), "standard input"))


def read_text_file(file: Path) -> str:
    """Read the file that --file names.

    Raises:
        InvalidArgumentError: the file cannot be read, or is not UTF-8.
    """
    if file == Path():
        raise InvalidArgumentError("--file is empty or the current folder; name a file")
    try:
        with file.open("rb") as stream:
            data = _read(stream, str(file))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read --file {file}: {error.strerror}") from error
    return decode_utf8(data, str(file))


def _read(stream: BinaryIO, source: str) -> bytes:
    data = stream.read(limits().max_document_bytes + 1)
    if len(data) > limits().max_document_bytes:
        raise InvalidArgumentError(
            f"{source} has more than {limits().max_document_bytes:,} bytes; "
            f"{how_to_raise('max_document_bytes')}"
        )
    return data


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
