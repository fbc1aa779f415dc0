"""The parser of the command line: errors in one line, and help in two parts."""

from __future__ import annotations

import argparse
import re

from gpt2np.cli.output import print_stderr
from gpt2np.errors import did_you_mean, renamed, shortened

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

MORE_OPTIONS = "More options"
"""Title of the group from which on only --help-all shows the options."""

FLAGS: dict[str, str] = {}
"""The names on the command line of the declared options that were added, by their Python names."""

_PHRASES = {"do_sample=False": "--greedy", 'allowed_special="all"': "--special allow"}


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the most similar option.

    Attributes:
        innermost: the parser of the command that runs, or of its action.
        words: the words of the command line, which messages repeat as they are.
    """

    innermost: Parser | None = None
    words: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False)
        self.add_argument("--help-all", action=_ShowAll, nargs=0, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {shortened(message)} (try {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but report unknown arguments here, where the command is known."""
        Parser.innermost = self
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0]
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0].replace("_", "-")
                hint = did_you_mean(name, sorted(self.option_names() - {word}))
                self.error(f"unrecognized option {word!r}{hint}")
            self.error(f"unrecognized argument {word!r}; quote a text of several words")
        return namespace, []

    def option_names(self) -> set[str]:
        """Return the names of all options that the full help shows."""
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", self.full_help()))

    def format_help(self) -> str:
        """Return the help up to the group MORE_OPTIONS."""
        first, is_cut, _ = self.full_help().partition(f"\n{MORE_OPTIONS}:")
        return f"{first}\n{self.prog} --help-all shows all options.\n" if is_cut else first

    def print_help(self, file: Any = None) -> None:
        """Print the help. A failure to write is an error here, which argparse would ignore."""
        print(self.format_help(), end="", file=file, flush=True)

    def full_help(self) -> str:
        """Return the help with all options."""
        return super().format_help()


def spell(name: str, value: str = "") -> str:
    """Return how the command that runs spells an argument of the library; "" without an option."""
    options = Parser.innermost.option_names() if Parser.innermost else set()
    flags = (FLAGS.get(name, ""), f"--{name.replace('_', '-')}")
    flag = next((flag for flag in flags if flag in options), "")
    if phrase := _PHRASES.get(f"{name}={value}"):
        return phrase if phrase.split()[0] in options else ""
    if not flag or value in ("", "True"):
        return flag
    text = value.strip("'")
    return f"--no-{flag[2:]}" if value == "False" else f"{flag} {text}"


def spelled(message: object) -> str:
    """Return a message of the library with the command line's spelling of arguments."""
    return renamed(str(message), spell, Parser.words)


def print_warning(message: object) -> None:
    """Print a warning of the library to stderr."""
    print_stderr(f"warning: {spelled(message)}")


class _ShowAll(argparse.Action):
    """The option --help-all."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Sequence[Any] | object) -> None:
        assert isinstance(parser, Parser)
        print(parser.full_help(), end="")
        parser.exit()
