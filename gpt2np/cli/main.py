"""Which command, what exit code.

0: done, also when the reader of stdout has gone. 1: could not be done. 2: wrong use. 130: Ctrl-C.
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from gpt2np import __version__
from gpt2np.cli.streams import drop_stdout, notice, prepare_streams
from gpt2np.errors import ContextLengthError, GPT2NPError, InvalidArgumentError
from gpt2np.kernels.threads import let_idle_blas_threads_sleep

COMMANDS = (
    "generate",
    "chat",
    "tokenize",
    "download",
    "encode",
    "train-tokenizer",
    "eval",
    "trace",
    "explain",
    "info",
    "convert",
    "bench",
)
"""Each is a module of this package, with add_arguments(parser) and run(args)."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is for those who ask for --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (try {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, but help that can't be written is an error, as every result is."""
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name; returns the exit code."""
    prepare_streams()
    let_idle_blas_threads_sleep()
    gc.set_threshold(50_000)  # to look for garbage in a vocabulary takes longer than to read it
    # A module is imported for whoever names its command, all of them for who asks which there are.
    named = arguments[0] in COMMANDS if arguments else False
    modules = {name: _module(name) for name in (arguments[:1] if named else COMMANDS)}
    program = f"gpt2np {arguments[0]}" if named else "gpt2np"
    try:
        return _obey(arguments, modules)
    except GPT2NPError as error:
        notice(f"{program}: error: {error}")
        return 2 if isinstance(error, (InvalidArgumentError, ContextLengthError)) else 1
    except OSError as error:
        drop_stdout()
        # Windows says EINVAL where others say EPIPE.
        if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
            return 0
        told = "standard output is closed" if error.errno == errno.EBADF else error
        notice(f"{program}: error: {told}")
        return 1


def _obey(arguments: Sequence[str], modules: Mapping[str, ModuleType]) -> int:
    parser = _parser(modules)
    args, rest = parser.parse_known_args(arguments)
    if args.command is None:
        if rest:
            parser.error(f"what is {rest[0]!r}?")
        parser.print_help()
        return 0
    if rest:
        quotes = args.command in ("generate", "trace", "explain")
        together = "what is not an option must stand together"
        hint = " Put a text of several words in quotes" if quotes else f" {together.capitalize()}"
        parser.exit(
            2,
            f"gpt2np {args.command}: error: what is {rest[0]!r}?"
            f"{'' if rest[0].startswith('-') else hint} "
            f"(try gpt2np {args.command} --help)\n",
        )
    exit_code: int = modules[args.command].run(args)
    sys.stdout.flush()  # here, where it may fail: at Python's end it would fail without a word
    return exit_code


def _module(command: str) -> ModuleType:
    return import_module(f"gpt2np.cli.{command.replace('-', '_')}")


def _parser(modules: Mapping[str, ModuleType]) -> argparse.ArgumentParser:
    parser = _Parser(prog="gpt2np", description="GPT-2 in NumPy, from text to text.")
    parser.add_argument("--version", action="version", version=f"gpt2np {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    for name, module in modules.items():
        summary = (module.__doc__ or "").split("\n")[0]
        module.add_arguments(
            commands.add_parser(
                name,
                help=summary,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser
