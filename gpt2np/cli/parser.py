"""The parser of the command line, and how messages spell options."""

from __future__ import annotations

import argparse
import re
from itertools import takewhile

from gpt2np.errors import did_you_mean, renamed, shortened

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from typing import Any, NoReturn

FLAGS: dict[str, str] = {}
"""The names on the command line of the declared options that were added, by their Python names."""

_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, with the most similar option."""

    def __init__(self, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, formatter_class=formatter, allow_abbrev=False)
        self.color = False  # of Python 3.14: `_unrecognized` reads the help

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments"):  # one of them may be misspelled
            words = takewhile(lambda word: word != "--", self._words)
            known = {*_OPTION.findall(self.format_help())}
            unknown = (w for w in words if w.startswith("--") and w.partition("=")[0] not in known)
            message = next(map(self._unrecognized, unknown), message)
        self.exit(2, f"{self.prog}: error: {shortened(message)} (try {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but report unknown arguments here, where the command is known."""
        self._words = args or []
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unrecognized(unknown[0]))
        return namespace, []

    def _unrecognized(self, word: str) -> str:
        """Return an error message about an argument that the parser does not know, with advice."""
        text, name = self.format_help(), word.partition("=")[0]
        if word.startswith("-") and word != "-":
            hint = did_you_mean(name.replace("_", "-"), sorted({*_OPTION.findall(text)} - {name}))
            return f"unrecognized option {word!r}{hint}"
        hint = "give all arguments before the options, and no more than the usage shows"
        hint = hint if "\npositional" in text else f"to select a model, give --model {word}"
        hint = "quote a text of several words" if re.search(r"\[(PROMPT|TEXT)\b", text) else hint
        return f"unrecognized argument {word!r}; {hint}"


def spell(name: str, value: str) -> str:
    """Return how the command line spells an argument of the library, such as --top-k 5."""
    if name == "allowed_special":
        return "--special allow"
    if name == "temperature" and value in ("0", "0.0"):
        return "--greedy (--temperature 0)"
    flag = FLAGS.get(name) or f"--{name.replace('_', '-')}"
    text = value.strip("'")
    return flag if text in ("", "True") else f"{flag} {text}"


def spelled(message: object) -> str:
    """Return a message of the library with the command line's spelling of arguments."""
    return renamed(str(message), spell)
