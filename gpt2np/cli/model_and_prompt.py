"""What the commands that look into a pass have in common: a model, and a prompt for it."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.streams import notice
from gpt2np.cli.text_input import argument, file_content, standard_input, without_newline
from gpt2np.errors import InvalidArgumentError
from gpt2np.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.engine import LanguageModel


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT and --file."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="- for standard input")
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="read the prompt from a file (UTF-8)"
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --model, --threads and --dtype."""
    add = parser.add_argument
    add(
        "--model",
        metavar="MODEL",
        help="a Hugging Face id (also with @REVISION), a folder, or 'bundled'; default: "
        "$GPT2NP_MODEL, else openai-community/gpt2 or, if that can't be had, the bundled model",
    )
    add("--threads", type=int, metavar="N", help="threads for the matrix products (default: all)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")


def given_prompt(args: argparse.Namespace) -> str:
    """The text of PROMPT, --file or standard input.

    Raises:
        InvalidArgumentError: none or two of them, or not UTF-8.
    """
    if args.file is not None:
        if args.prompt is not None:
            raise InvalidArgumentError("give either PROMPT or --file, not both")
        return without_newline(file_content(args.file))
    if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()):
        return standard_input("prompt")
    if args.prompt is None:
        raise InvalidArgumentError("no prompt; give PROMPT, --file FILE, or - for standard input")
    return argument(args.prompt, "PROMPT")


def load_model(args: argparse.Namespace) -> "LanguageModel":
    """The model that the options name; stderr tells which, and what is to be known about it."""
    set_threads(args.threads)
    from gpt2np.engine import LanguageModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = LanguageModel.load(args.model, args.dtype)
    why = f" ({lm.notice}; choose another with --model)" if lm.notice else ""
    notice(f"model: {lm.name}{why}")
    for told in (str(warning.message) for warning in caught):
        if not lm.notice or lm.notice not in told:  # that one has been announced
            notice(told)
    return lm
