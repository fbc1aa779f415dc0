"""Entry point of the command line: commands, errors and exit codes.

The exit code is 0 (success, or a closed output pipe), 1 (failure), 2 (wrong usage) or 130 (Ctrl-C).
"""

import argparse
import errno
import gc
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from gpt2np import __version__
from gpt2np.cli.output import discard_stdout, prepare_streams, print_stderr
from gpt2np.cli.parser import Parser, spell, spelled
from gpt2np.errors import (
    ContextLengthError,
    GPT2NPError,
    InvalidArgumentError,
    did_you_mean,
    error_reason,
    printable,
    short_repr,
    shortened,
)

GROUPS = {
    "Write": {
        "generate": "Generate text that continues a prompt",
        "chat": "Chat with a model in the terminal",
        "batch": "Continue each prompt of a file",
    },
    "Tokens": {
        "tokenize": "Show how text is split into tokens",
        "decode": "Show the text of token ids",
        "encode": "Encode a corpus to one file of token ids, for training",
    },
    "Look inside": {
        "trace": "Show the logit lens, attention and next token of a prompt",
        "explain": "Write an HTML page that shows how a model reads a prompt",
        "parity": "Compare another engine's results with exact results",
    },
    "Measure": {
        "score": "Measure the perplexity of texts, or score each document",
        "bench": "Measure a model's speed and memory on this machine",
        "info": "Show a model's config, tensors, parameters and memory",
    },
    "Train": {
        "train": "Train a small model, or fine-tune one",
        "train-tokenizer": "Train a vocabulary on text",
    },
    "Models": {
        "serve": "Serve models over HTTP, as OpenAI's API, with a playground",
        "convert": "Change the dtype of a model's weights",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
"""Commands: modules of this package with add_arguments(parser), and run(args) → exit code."""

_EXAMPLE = """
Example:
  gpt2np generate "The lighthouse keeper" -n 40

'gpt2np COMMAND --help' describes a command. The documentation begins with
docs/index.md in the repository."""


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name and return the exit code."""
    prepare_streams()
    # Before NumPy is imported: idle OpenBLAS threads spin for 2²⁰ clock cycles, instead of 2²⁶.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    gc.set_threshold(50_000)  # by default, GC takes longer than reading a vocabulary
    named = [name for name in arguments[:1] if name in COMMANDS]
    program = " ".join(["gpt2np", *named])
    warnings.showwarning = lambda message, *_: print_stderr(f"warning: {spelled(message)}")
    try:
        _set_threads(arguments)
        return _run_command({name: import_command(name) for name in named}, arguments)
    except GPT2NPError as error:
        print_stderr(f"{program}: error: {error.renamed(spell)}")
        return 2 if isinstance(error, (InvalidArgumentError, ContextLengthError)) else 1
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        print_stderr(f"{program}: error: out of memory{reason}; use a smaller input or model")
        return 1
    except OSError as error:
        discard_stdout()
        # Windows reports a closed pipe as EINVAL, other systems as EPIPE.
        if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
            return 0
        print_stderr(f"{program}: error: {_describe(error)}")
        return 1


def _set_threads(arguments: Sequence[str]) -> None:
    """Set the threads of BLAS, which reads their number when a command imports NumPy."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--threads", type=int)
    with suppress(argparse.ArgumentError):
        threads = parser.parse_known_args(arguments)[0].threads
        if threads is not None:
            from gpt2np.kernels.threads import set_threads

            set_threads(threads)


def _run_command(modules: Mapping[str, ModuleType], arguments: Sequence[str]) -> int:
    parser = create_parser(modules)
    if arguments and not modules and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], COMMANDS)
        parser.error(f"there is no command {short_repr(arguments[0])}{hint}")
    try:
        args = parser.parse_args(arguments)
        if args.command is None or args.version:
            print(f"gpt2np {__version__}" if args.version else parser.format_help().rstrip())
            return 0
        exit_code: int = modules[args.command].run(args)
        return exit_code
    finally:
        sys.stdout.flush()  # a failure here is reported; at exit it would be silent


def create_parser(modules: Mapping[str, ModuleType]) -> Parser:
    """Create the parser of the commands in `modules`; its help lists all commands."""
    groups = [
        "\n".join([f"{title}:", *(f"  {name:<17}{text}" for name, text in commands.items())])
        for title, commands in GROUPS.items()
    ]
    parser = Parser(
        prog="gpt2np",
        usage="gpt2np COMMAND [options]",
        description="Run GPT-2 with NumPy.",
        epilog="\n\n".join(groups) + "\n" + _EXAMPLE,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", prog="gpt2np", help=argparse.SUPPRESS)
    for name, module in modules.items():
        module.add_arguments(commands.add_parser(name, description=module.__doc__))
    return parser


def import_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"gpt2np.cli.{name.replace('-', '_')}")


def _describe(error: OSError) -> str:
    """Describe an OSError in one line; an error without a file name comes from stdout."""
    if error.filename is None:
        return f"cannot write standard output: {error_reason(error)}"
    from gpt2np.data.files import WriteError

    name = printable(shortened(os.fsdecode(error.filename)))
    action = "write" if isinstance(error, WriteError) else "access"
    return f"cannot {action} {name}: {error_reason(error)}"
