"""Entry point of the command line: parser, subcommands and exit codes.

The exit code is 0 (success, or a closed output pipe), 1 (failure), 2 (wrong usage) or 130 (Ctrl-C).
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from gpt2np import __version__
from gpt2np.cli.output import discard_stdout, prepare_streams, print_stderr
from gpt2np.errors import (
    SEE_MISSING_FEATURES,
    ContextLengthError,
    GPT2NPError,
    InvalidArgumentError,
    did_you_mean,
    error_reason,
    printable,
    short_repr,
    shortened,
)

COMMANDS = (
    *("generate", "batch", "chat", "serve", "tokenize", "decode", "download", "encode"),
    *("train-tokenizer", "train-draft", "train"),
    *("score", "trace", "explain", "parity", "info", "convert", "bench"),
)
"""Subcommands: modules of this package with add_arguments(parser), and run(args) → exit code."""

_ADVICE = {
    **dict.fromkeys(("--fp16", "--half", "--bf16"), "gpt2np computes in float32 or float64"),
    **dict.fromkeys(
        ("--device", "--gpu", "--cuda", "--gpu-layers", "--n-gpu-layers", "-ngl"),
        "gpt2np computes on CPUs only",
    ),
    **dict.fromkeys(
        ("-q", "--quiet", "--verbose", "--log-level", "--log-file"),
        "all messages go to stderr, so redirect stderr",
    ),
    "--epochs": "give --max-steps",
    "--num-train-epochs": "give --max-steps",
    **dict.fromkeys(
        ("--lora", "--lora-r"),
        f"merge the adapter into the weights first, or {SEE_MISSING_FEATURES}",
    ),
}
"""Options of other programs, and what to do instead."""

_COMMAND_ADVICE = {
    **dict.fromkeys(
        ("finetune", "fine-tune"), "to fine-tune a model, give train with --from MODEL"
    ),
    **dict.fromkeys(("eval", "perplexity"), "score measures the perplexity of files"),
}
"""Commands that do not exist, and what to do instead."""

_GENERATE_ADVICE = {
    "--stream": "a text is always printed while the model writes",
    **dict.fromkeys(("-p", "--prompt"), "give the prompt without an option"),
    "--include-stop": r"to keep a period, give --stop-regex '(?<=\.)'",
}

_SYNONYMS = {
    "--load-in-4bit": f"--weights int8, or {SEE_MISSING_FEATURES}",
    "--num-samples": "--samples",
    "-m": "--model",
    "-t": "--threads",
    "--max-num-seqs": "--max-running",
    **dict.fromkeys(("--grammar", "--grammar-file"), "--regex or --json-schema"),
    **dict.fromkeys(("--length", "--max-length", "--n-predict"), "--max-new-tokens"),
    **dict.fromkeys(("--stop-string", "--stop-strings", "--stop-sequence"), "--stop"),
    "--lr": "--learning-rate",
    **dict.fromkeys(("--int8", "--quantize", "--load-in-8bit"), "--weights int8"),
}
"""Options of other programs, and the option to give instead if the command has it."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that does not break lines within names such as train-draft."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        from textwrap import wrap  # which argparse, too, imports only for a help page

        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line; only --help prints the usage."""

    def __init__(self, **options: Any) -> None:
        options["formatter_class"] = _HelpFormatter
        super().__init__(**options, add_help=False, allow_abbrev=False)
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self.given: list[argparse.Action] = []  # options that have one value
        self.add_argument("-h", "--help", action="help", help="Show this message and exit")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {shortened(message)} (try {self.prog} --help)\n")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the options that a string such as -n5 may mean; [] if _ADVICE has the string."""
        if option_string.partition("=")[0] in _ADVICE | _GENERATE_ADVICE:
            return []
        return super()._get_option_tuples(option_string)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Convert the strings of an argument; the value of `--stop=--` is "--".

        Before Python 3.12.5, argparse drops this value, and then fails for the lack of a value.
        """
        if action.option_strings and type(action) is argparse._StoreAction:
            self.given.append(action)
        if not action.option_strings or arg_strings != ["--"]:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value if action.nargs in (None, argparse.OPTIONAL) else [value]

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message. If stdout cannot be written, raise the error that argparse ignores."""
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand that `arguments` name and return the exit code."""
    prepare_streams()
    # Before NumPy is imported: idle OpenBLAS threads spin for 2²⁰ clock cycles, instead of 2²⁶.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    gc.set_threshold(50_000)  # by default, GC takes longer than reading a vocabulary
    if arguments and arguments[0] in ("help", "version"):
        word, *rest = arguments
        arguments = [*rest, "--help"] if word == "help" else ["--version", *rest]
    is_named = bool(arguments) and arguments[0] in COMMANDS
    if arguments and not is_named and not arguments[0].startswith("-"):
        hint = did_you_mean(arguments[0], COMMANDS, _COMMAND_ADVICE)
        unknown = f"there is no command {short_repr(arguments[0])}{hint}"
        print_stderr(f"gpt2np: error: {unknown} (try gpt2np --help)")
        return 2
    is_overview = not any(name in COMMANDS for name in arguments)
    modules = {
        name: import_module(f"gpt2np.cli.{_module_name(name)}")
        for name in (arguments[:1] if is_named else () if is_overview else COMMANDS)
    }
    program = f"gpt2np {arguments[0]}" if is_named else "gpt2np"
    parser = _create_parser(modules)
    try:
        return _dispatch(parser, arguments, modules)
    except GPT2NPError as error:
        from gpt2np.cli.declared_options import FlagNotation, parser_flags  # slow to import

        flags = parser_flags(parser)
        text = error.text(FlagNotation(flags)) if error.arguments else error.renamed(flags)
        print_stderr(f"{program}: error: {text}")
        return 2 if isinstance(error, (InvalidArgumentError, ContextLengthError)) else 1
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        print_stderr(f"{program}: error: out of memory{reason}; use a smaller input or model")
        return 1
    except OSError as error:
        return _report_os_error(program, error)


def _report_os_error(program: str, error: OSError) -> int:
    """Print an error of a file or stream, but not that of a closed pipe; return the exit code."""
    discard_stdout()
    # Windows reports a closed pipe as EINVAL, other systems as EPIPE.
    if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
        return 0
    print_stderr(f"{program}: error: {_describe(error)}")
    return 2 if error.errno == errno.ENAMETOOLONG else 1


def _describe(error: OSError) -> str:
    """Describe an OSError in one line; an error without a file name comes from stdout."""
    if error.errno == errno.EBADF:
        return "standard output is closed"
    if error.filename is not None:
        name = shortened(os.fsdecode(error.filename))
        return printable(f"cannot access {name}: {error_reason(error)}")
    return f"cannot write standard output: {error.strerror}" if error.errno else str(error)


def _dispatch(
    parser: _Parser,
    arguments: Sequence[str],
    modules: Mapping[str, ModuleType],
) -> int:
    args, unrecognized = parser.parse_known_args(arguments)
    program = "gpt2np" if args.command is None else f"gpt2np {args.command}"
    if unrecognized:
        first = unrecognized[0]
        is_option = first.startswith("-") and first != "-"
        name = first.partition("=")[0].replace("_", "-")
        options = [o for p in _parsers(parser) if p.prog == program
                   for o in p._option_string_actions]  # fmt: skip
        advice = _ADVICE | (_GENERATE_ADVICE if args.command == "generate" else {})
        advice |= {n: f"give {x}" for n, x in _SYNONYMS.items() if x.split()[0] in options}
        hint = did_you_mean(name, options, advice)
        if not is_option:
            if args.command in ("generate", "trace", "explain"):
                hint = "; quote a prompt of several words"
            elif args.command in ("serve", "chat"):
                hint = "; name the model with --model"
            elif args.command is not None:
                hint = "; give all arguments together, before or after the options"
        if is_option and "--" in arguments and first in arguments[arguments.index("--") :]:
            hint = "; give all options before --"
        kind = "option" if is_option else "argument"
        parser.exit(
            2,
            f"{program}: error: unrecognized {kind} {shortened(repr(first))}{hint} "
            f"(try {program} --help)\n",
        )
    if args.command is None:
        parser.print_help()
        return 0
    given = [action for command in _parsers(parser) for action in command.given]
    for action in dict.fromkeys(action for action in given if given.count(action) > 1):
        name = next(name for name in action.option_strings if name.startswith("--"))
        print_stderr(f"{name} is given more than once; only the last value counts")
    exit_code: int = modules[args.command].run(args)
    sys.stdout.flush()  # a failure here is reported; at exit it would be silent
    return exit_code


def _parsers(parser: _Parser) -> Iterator[_Parser]:
    """Yield a parser and the parsers of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _parsers(command)


def _module_name(command: str) -> str:
    return command.replace("-", "_")


def _first_line(command: str) -> str:
    """Return the first line of a command's docstring without importing its module."""
    folder = os.path.dirname(__file__)  # noqa: PTH120 (pathlib would be the slowest import here)
    with open(f"{folder}/{_module_name(command)}.py", encoding="utf-8") as file:  # noqa: PTH123
        return file.readline().removeprefix("r").removeprefix('"""')


def _create_parser(modules: Mapping[str, ModuleType]) -> _Parser:
    """Create the parser of some commands, or without modules the parser of the overview."""
    parser = _Parser(prog="gpt2np", description="Run GPT-2 with NumPy.")
    version = f"gpt2np {__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help="Show the version and exit"
    )
    commands = parser.add_subparsers(
        title="Commands", dest="command", metavar="COMMAND", parser_class=_Parser
    )
    for name in modules or COMMANDS:
        module = modules.get(name)
        description = module.__doc__ if module else None
        summary = (description or _first_line(name)).partition("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=description)
        if module:
            module.add_arguments(command)
    return parser
