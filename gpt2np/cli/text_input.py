"""Input of UTF-8 text from command-line arguments and standard input."""

import argparse
import atexit
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import get_args

from gpt2np.cli.output import print_stderr
from gpt2np.data.files import STDIN_PREFIX
from gpt2np.data.options import SPECIAL_HELP, Special
from gpt2np.data.text import decode_utf8
from gpt2np.errors import InvalidArgumentError, warn
from gpt2np.limits import how_to_raise, limits


def add_prompt_argument(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT."""
    text = "Prompt; '-', or no PROMPT, reads standard input"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=text)


def add_special_argument(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Declare --special, which `check_special` and `allowed_special` take."""
    text = f"{SPECIAL_HELP} (default: {default or 'text, and warn if there is one'})"
    parser.add_argument("--special", choices=get_args(Special), default=default, help=text)


def read_prompt(args: argparse.Namespace) -> str:
    """Read the prompt from PROMPT or standard input."""
    [prompt] = read_texts([] if args.prompt is None else [args.prompt], "prompt")
    return prompt


def read_texts(texts: list[str], kind: str) -> list[str]:
    """Return the texts of the command line; "-", or no text in a pipe, is standard input.

    Raises InvalidArgumentError, which names the `kind` of the texts, if there is none.
    """
    if not texts and sys.stdin.isatty():
        raise InvalidArgumentError(f"no {kind}; give one, or - to read standard input")
    return [_read_text(text, kind) for text in texts or ["-"]]


def _read_text(text: str, kind: str) -> str:
    """Return `text`; for -, standard input without one trailing newline. A terminal is asked."""
    if text != "-":
        if os.path.isfile(text):  # noqa: PTH113  (Path.is_file refuses a long text)
            warn(f"the {kind} is the name of a file; to read it: < {shlex.quote(text)}")
        return decode_utf8(os.fsencode(text), f"the {kind}")
    if sys.stdin.isatty():
        print_stderr(f"type the {kind}; press Ctrl-D on an empty line to end it")
    most = limits().max_document_bytes
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        advice = how_to_raise("max_document_bytes")
        raise InvalidArgumentError(f"standard input has more than {most:,} bytes; {advice}")
    text = decode_utf8(data, "standard input")
    return text.removesuffix("\n").removesuffix("\r")  # which editors and `echo` add


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
