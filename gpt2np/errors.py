"""Every exception that a caller may want to catch.

    GPT2NPError
    ├── ModelNotFoundError     no folder, cached model or Hub repository of that name
    ├── CheckpointError        a model's files are damaged, or do not fit each other
    ├── TokenizerError         a vocabulary's files are damaged, or do not fit each other
    ├── ContextLengthError     more tokens than the model has positions
    └── InvalidArgumentError   a value out of its range (also a ValueError)
        └── BatchError         one text of several can't go on; it has what came of all

A message names the thing, what was expected, and what to do next, in one line.
"""

from __future__ import annotations

from reprlib import Repr

TYPE_CHECKING = False  # importing typing takes longer than all of this module
if TYPE_CHECKING:
    from gpt2np.generation.streaming import Completion

_LONGEST = 2000  # characters of a message; a file can name a tensor with a million

_short = Repr()
_short.maxstring = _short.maxlong = _short.maxother = 80


def short_repr(value: object) -> str:
    """The `repr` of a value out of a file, shortened: it may be long, or nested without end."""
    return _short.repr(value)


def printable(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class GPT2NPError(Exception):
    """Base class of everything that gpt2np raises on purpose."""

    def __str__(self) -> str:
        """The message as one printable line, whatever the names in it: no command to a terminal."""
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        return printable(text)


class ModelNotFoundError(GPT2NPError):
    """No model is to be had under the given name or path."""


class CheckpointError(GPT2NPError):
    """A model's config or weights can't be used as they are."""


class TokenizerError(GPT2NPError):
    """A vocabulary's files can't be used as they are."""


class ContextLengthError(GPT2NPError):
    """A text is longer than the model's context."""


class InvalidArgumentError(GPT2NPError, ValueError):
    """An argument has a value that it can't have."""


class BatchError(InvalidArgumentError):
    """A text of a batch can't go on.

    Attributes:
        completions: what came of each prompt, in order; that of the text is "cancelled".
    """

    def __init__(self, message: str, completions: list[Completion]) -> None:
        super().__init__(message)
        self.completions = completions
