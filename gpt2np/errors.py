"""The exceptions of gpt2np.

    GPT2NPError
    ├── ModelNotFoundError     no folder, cached model or Hub repository has the given name
    ├── CheckpointError        a model's files are damaged or inconsistent
    ├── TokenizerError         a vocabulary's files are damaged or inconsistent
    ├── ContextLengthError     a text is longer than the model's context
    └── InvalidArgumentError   an argument is out of its range (also a ValueError)

    KeyboardInterrupt
    └── GenerationInterrupted  Ctrl-C or a notebook's stop button ended a generation

A message is one line that names the problem, the expected value and the next step. An error about
an argument knows its name, and messages have further arguments in backticks, as in `num_beams=3`.
So the command line can show its own spelling, --top-k and --num-beams 3; see `renamed`.
"""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import contextmanager
from numbers import Integral
from reprlib import Repr

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

__all__ = [
    "CheckpointError",
    "ContextLengthError",
    "GPT2NPError",
    "GenerationInterrupted",
    "InvalidArgumentError",
    "ModelNotFoundError",
    "TokenizerError",
]

SEE_MISSING_FEATURES = 'see "Missing features" in the documentation'
"""Hint for messages: the page names programs that have the feature."""

_MAX_LENGTH = 600  # characters of a message; a tensor name in a file can have a million

_QUOTED = r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""  # as `repr` quotes texts

_repr = Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = 80


def short_repr(value: object) -> str:
    """Return the `repr` of a value, shortened if it is long or deeply nested."""
    return _repr.repr(value)


def warn(message: str) -> None:
    """Warn the user: the warning names the line that called the package, not one inside of it."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_code.co_filename.startswith(__file__.removesuffix("errors.py")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def printable(text: str) -> str:
    """Return `text` on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str) -> str:
    """Return `text`, cut in the middle if it is long."""
    half = _MAX_LENGTH // 2
    return text if len(text) <= _MAX_LENGTH else f"{text[:half]}…{text[-half:]}"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, singular or plural: "1 document", "2,000 documents"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def error_reason(error: BaseException) -> str:
    """Return an error's reason without number and file name, such as "Permission denied"."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


FOREIGN_NAMES = {
    "max_length": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "min_length": "min_new_tokens",
    "temp": "temperature",
    "n": "num_return_sequences",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "do_sample": "for greedy decoding, set temperature to 0",
    "suppress_tokens": "bad_words_ids",
    "guided_json": "json_schema",
    "response_format": "json_schema",
    "grammar": "regex",
    "streamer": "call stream, which yields the pieces of the text",
}
"""Names that transformers, vLLM and llama.cpp have for arguments: gpt2np's name, or advice."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the advice on an unknown name, or else the most similar known name, or else "".

    `name` and `known` may be flags: --max-length is known as `max_length` in `FOREIGN_NAMES`.
    """
    names = {item.lstrip("-").replace("-", "_"): item for item in known}
    foreign = FOREIGN_NAMES.get(name.lstrip("-").replace("-", "_"), "")
    if foreign in names:
        return f"; did you mean {names[foreign]!r}?"
    if " " in foreign:
        return f"; {foreign}"
    from difflib import get_close_matches  # slow to import

    nearest = get_close_matches(name, names.values(), 1, 0.7)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def renamed(message: str, spell: Callable[[str, str], str]) -> str:
    """Return a message with another interface's spelling of the arguments in backticks.

    `spell` maps the name of an argument and its value, "" for none, to the spelling; "" keeps it.
    Values in quotes stay as the user has written them.
    """
    pattern = rf"{_QUOTED}|`(\w+)=?([^`]*)`"
    return re.sub(pattern, lambda m: (m[1] and spell(m[1], m[2])) or m[0], message)


def is_integer(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_argument(is_valid: bool, name: str, value: object, expected: str) -> None:
    """Raise InvalidArgumentError if an argument is invalid; the message says what is expected."""
    if not is_valid:
        message = f"{name} is {short_repr(value)}; it must be {expected}"
        raise InvalidArgumentError(message, param=name)


def install_hint(extra: str) -> str:
    """Return a hint on how to install the packages of gpt2np's optional feature `extra`."""
    return f"in a checkout of gpt2np, run: pip install '.[{extra}]'"


class GPT2NPError(Exception):
    """Base class of all errors that gpt2np raises.

    Attributes:
        param: the name of the argument that the error is about, if there is one.
        place: text before the message, such as "prompt 2 of 3: ".
    """

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.place = ""

    def __str__(self) -> str:
        """Return the message on one line, shortened, with control characters escaped."""
        return printable(shortened(f"{self.place}{self.args[0]}"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def renamed(self, spell: Callable[[str, str], str]) -> str:
        """Return the message with another interface's spelling of arguments, such as --top-k.

        The argument `param` is found without backticks. A message that lacks it begins with it.
        """
        message, param = str(self), self.param
        if param and spell(param, "") and f"`{param}" not in message:
            text = message.removeprefix(self.place)
            name, count = re.subn(rf"^{param}\b", f"`{param}`", text)
            message = self.place + (name if count else f"`{param}`: {text}")
        return renamed(message, spell)


class ModelNotFoundError(GPT2NPError):
    """No model has the given name or path."""


class CheckpointError(GPT2NPError):
    """A model's config or weights are damaged or inconsistent."""


class TokenizerError(GPT2NPError):
    """A vocabulary's files are damaged or inconsistent."""


class ContextLengthError(GPT2NPError):
    """A text is longer than the model's context."""


class InvalidArgumentError(GPT2NPError, ValueError):
    """An argument is out of its range, or several contradict each other."""


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C, or the stop button of a notebook, has ended a generation.

    A program that does not catch KeyboardInterrupt ends, even if it contains `except Exception`.

    Attributes:
        completions: the `Completion` of every prompt, in order, with the text generated so far. An
            unfinished text has the finish reason "cancelled".
    """

    def __init__(self, completions: list[Any]) -> None:
        super().__init__(
            "this exception has the texts so far, as `completions`; afterwards, in a notebook: "
            "import sys; sys.last_value.completions"
        )
        self.completions = completions


@contextmanager
def errors_about(param: str) -> Iterator[None]:
    """Let errors of the `with` block be about an argument, if they do not name another one."""
    try:
        yield
    except GPT2NPError as error:
        error.param = error.param or param
        raise


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put `place` before the message of an error of the `with` block; "" changes nothing."""
    try:
        yield
    except GPT2NPError as error:
        error.place = place or error.place
        raise
