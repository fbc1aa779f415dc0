"""The parser of the command line, and how messages spell options."""

from __future__ import annotations

import argparse
import re

from gpt2np.errors import did_you_mean, renamed, shortened

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from typing import Any, NoReturn

FLAGS: dict[str, str] = {}
"""The names on the command line of the declared options that were added, by their Python names."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the most similar option."""

    def __init__(self, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {shortened(message)} (try {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but report unknown arguments here, where the command is known."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0]
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0].replace("_", "-")
                options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", self.format_help()))
                hint = did_you_mean(name, sorted(options - {word}))
                self.error(f"unrecognized option {word!r}{hint}")
            self.error(f"unrecognized argument {word!r}; quote a text of several words")
        return namespace, []


def spell(name: str, value: str) -> str:
    """Return how the command line spells an argument of the library, such as --top-k 5."""
    if name == "allowed_special":
        return "--special allow"
    flag = FLAGS.get(name) or f"--{name.replace('_', '-')}"
    text = value.strip("'")
    return flag if text in ("", "True") else f"{flag} {text}"


def spelled(message: object) -> str:
    """Return a message of the library with the command line's spelling of arguments."""
    return renamed(str(message), spell)
