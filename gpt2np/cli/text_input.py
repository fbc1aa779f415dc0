"""Input of UTF-8 text from command-line arguments, files and standard input."""

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO, get_args

from gpt2np.cli.output import print_stderr
from gpt2np.data.files import STDIN_PREFIX
from gpt2np.data.options import SPECIAL_HELP, Special
from gpt2np.data.text import decode_utf8
from gpt2np.errors import InvalidArgumentError
from gpt2np.limits import how_to_raise, limits


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT and --file."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="Prompt, or '-' to read standard input")
    file = "UTF-8 text file to read the prompt from, or '-' for standard input"
    add("--file", type=Path, metavar="FILE", help=file)


def add_special_argument(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Declare --special, which `check_special` and `allowed_special` take."""
    text = f"{SPECIAL_HELP} (default: {default or 'text, with a warning'})"
    parser.add_argument("--special", choices=get_args(Special), default=default, help=text)


def read_prompt(args: argparse.Namespace) -> str:
    """Read the prompt from PROMPT, --file or standard input."""
    prompts = [] if args.prompt is None else [args.prompt]
    [prompt] = read_texts(prompts, args.file, "prompt", "PROMPT")
    return prompt if args.file is None else strip_newline(prompt)


def read_texts(texts: list[str], file: Path | None, kind: str, argument: str) -> list[str]:
    """Read texts from the command line, --file or standard input ("-", or no text in a pipe).

    `kind` and `argument` are the names of the texts and of their argument, for messages.

    Raises:
        InvalidArgumentError: there is no text, or a text and --file.
    """
    if file is not None:
        if texts:
            raise InvalidArgumentError(f"give either {argument} or --file, not both")
        return [read_text_file(file)]
    if not texts and sys.stdin.isatty():
        raise InvalidArgumentError(
            f"no {kind}; give {argument}, --file FILE, or - for standard input"
        )
    texts = texts or ["-"]
    return [read_stdin(kind) if t == "-" else text_argument(t) for t in texts]


def text_argument(text: str) -> str:
    """Decode an argument as UTF-8 in every locale; other bytes become U+FFFD."""
    return os.fsencode(text).decode(errors="replace")


def read_stdin(kind: str) -> str:
    """Read standard input and strip one trailing newline; at a terminal, ask for the `kind`."""
    if sys.stdin.isatty():
        print_stderr(f"type the {kind}; press Ctrl-D on an empty line to end it")
    return strip_newline(_read_text(sys.stdin.buffer, "standard input"))


def read_text_file(file: Path) -> str:
    """Read the file that --file names; - is standard input."""
    if file == Path("-"):
        return _read_text(sys.stdin.buffer, "standard input")
    with file.open("rb") as stream:
        return _read_text(stream, f"{file}")


def spool_stdin(path: str | Path) -> Path:
    """Return `path`; for -, copy standard input to a temporary file, which is removed at exit.

    Some readers read a file several times, or need its size.
    """
    if str(path) != "-":
        return Path(path)
    folder = Path(tempfile.mkdtemp(prefix=STDIN_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with (folder / "stdin.txt").open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return folder / "stdin.txt"


def _read_text(stream: BinaryIO, source: str) -> str:
    most = limits().max_document_bytes
    data = stream.read(most + 1)
    if len(data) > most:
        advice = how_to_raise("max_document_bytes")
        raise InvalidArgumentError(f"{source} has more than {most:,} bytes; {advice}")
    return decode_utf8(data, source)


def strip_newline(text: str) -> str:
    """Strip one trailing newline, which editors and `echo` add."""
    return text.removesuffix("\n").removesuffix("\r")
