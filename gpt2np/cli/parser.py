"""The parser of the command line: errors in one line, and help in two parts."""

from __future__ import annotations

import argparse
import re

from gpt2np.errors import did_you_mean, shortened

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

MORE_OPTIONS = "More options"
"""Title of the group from which on only --help-all shows the options."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the most similar option."""

    def __init__(self, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False)
        self.set_defaults(parser=self)  # so the parser of the innermost command is args.parser

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {shortened(message)} (try {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but report unknown arguments here, where the command is known."""
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


class ShowAll(argparse.Action):
    """The option --help-all."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Sequence[Any] | object) -> None:
        assert isinstance(parser, Parser)
        print(parser.full_help(), end="")
        parser.exit()
