"""What commands have in common that need a model, or a prompt for it."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.text_input import argument, file_content, standard_input, without_newline
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.threads import set_threads, thread_count

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare PROMPT and --file."""
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="the text; - for standard input"
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="read the prompt from a file (UTF-8)"
    )


def add_model_arguments(parser: argparse.ArgumentParser, *, dtype: bool = True) -> None:
    """Declare --model, --threads and --dtype, without which the dtype is float32."""
    add = parser.add_argument
    add(
        "--model",
        metavar="MODEL",
        help="a Hugging Face id (gpt2, distilgpt2, openai-community/gpt2-medium, ..., with "
        "@REVISION for a branch, tag or commit), a folder, or 'bundled'; default: $GPT2NP_MODEL, "
        "else openai-community/gpt2 or, if that can't be had, the bundled model",
    )
    add("--threads", type=int, metavar="N", help="processors to use (default: all)")
    parser.set_defaults(dtype="float32")
    if dtype:
        add("--dtype", choices=("float32", "float64"), help="default: float32")


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


def load_model(args: argparse.Namespace) -> "tuple[LanguageModel, list[str]]":
    """The model that the options name, and lines that say which it is and what is to be known.

    Options: those of `add_model_arguments`, and `draft`, if the command has it.
    """
    set_threads(args.threads)
    from gpt2np.language_model import LanguageModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draft, processes = getattr(args, "draft", None), thread_count()
        lm = LanguageModel.load(args.model, args.dtype, draft, processes)
    why = f" ({lm.fallback_reason}; choose another with --model)" if lm.fallback_reason else ""
    told = (str(warning.message) for warning in caught)
    # The model's notice is a warning, too, and has been given in the first line.
    rest = [line for line in told if not lm.fallback_reason or lm.fallback_reason not in line]
    return lm, [f"model: {lm.name}{why}", *rest]
