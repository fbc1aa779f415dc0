"""Options that are declared once: dataclass fields with a range, a help text and their names.

    @dataclass(frozen=True)
    class Sampling:
        top_p: float = option(1.0, Number(0, 1, is_open=True), "Nucleus sampling", metavar="P")

The checks of values, the command line, the HTTP server, the plugin for `llm` and the reference
pages all follow from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any

from gpt2np.errors import Notation, check_argument, is_integer


class Range:
    """The valid values of an option.

    Attributes:
        noun: the valid values in words, without bounds.
        note: hint for messages, such as the meaning of a special value.
        is_optional: whether None is valid.
        metavar: name of a value in `--help`.
        item_type: function that converts an item of a list from text.
    """

    noun: str
    metavar = "X"
    item_type: Callable[[str], Any] = str

    def __init__(self, *, note: str = "", is_optional: bool = False) -> None:
        self.note, self.is_optional = note, is_optional

    def words(self) -> str:
        """Return the valid values in words."""
        return self.noun

    def is_valid(self, value: Any) -> bool:
        """Return whether a value, which is not None, is valid."""
        raise NotImplementedError

    def normalize(self, value: Any) -> Any:
        """Return a valid value in the form that the dataclass holds."""
        return value

    def check(self, name: str, value: Any) -> Any:
        """Return a value in normal form.

        Raises:
            InvalidArgumentError: the value of the option `name` is out of its range.
        """
        if value is None and self.is_optional:
            return None
        check_no_array(name, value)
        expected = f"{self.words()}; {self.note}" if self.note else self.words()
        check_argument(self.is_valid(value), name, value, expected)
        return self.normalize(value)


def check_no_array(name: str, value: Any) -> None:
    """Raise InvalidArgumentError for an array, which has no truth value and no single equality."""
    check_argument(not getattr(value, "ndim", 0), name, value, "a Python value, not an array")


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, not a bool, with an absolute value below 1e300."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    if not isinstance(value, Integral):
        value = float(value)  # NumPy's float32 cannot be compared with 1e300
    return bool(abs(value) < 1e300)


class Number(Range):
    """Numbers from `low` to `high`, in a unit; with `is_open`, above `low`."""

    noun = "a number"

    def __init__(
        self,
        low: float = 0,
        high: float = math.inf,
        *,
        is_open: bool = False,
        unit: str = "",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.low, self.high, self.is_open = low, high, is_open
        if unit:
            self.noun = f"a number of {unit}"

    def words(self) -> str:
        if self.is_open:
            at_most = "" if self.high == math.inf else f" and at most {self.high}"
            return f"{self.noun} above {self.low}{at_most}"
        if self.high == math.inf:
            return f"{self.noun}, at least {self.low}"
        return f"{self.noun} from {self.low} to {self.high}"

    def is_valid(self, value: Any) -> bool:
        is_inside = is_number(value) and self.low <= value <= self.high
        return bool(is_inside and not (self.is_open and value == self.low))


class Integer(Number):
    """Integers from `low` to `high`."""

    metavar = "N"
    noun = "an integer"

    def is_valid(self, value: Any) -> bool:
        return is_integer(value) and bool(self.low <= value <= self.high)


class Flag(Range):
    """True or False."""

    noun = "True or False"

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, bool)


class OneOf(Range):
    """One of several values."""

    def __init__(self, *values: bool | str, **common: Any) -> None:
        super().__init__(**common)
        self.values = values

    def words(self) -> str:
        *first, last = map(repr, (None, *self.values) if self.is_optional else self.values)
        return " or ".join(filter(None, [", ".join(first), last]))

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, (bool, str)) and value in self.values


class Text(Range):
    """A text that is not empty."""

    metavar = "TEXT"
    noun = "a non-empty text"

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, str) and value != ""


class Texts(Range):
    """A list of texts that are not empty; with `is_single`, also one text."""

    metavar = "TEXT"

    def __init__(self, *, is_single: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.is_single = is_single

    def words(self) -> str:
        return f"{Text.noun} or a list of them" if self.is_single else "a list of non-empty texts"

    def is_valid(self, value: Any) -> bool:
        texts = [value] if self.is_single and isinstance(value, str) else value
        return isinstance(texts, (list, tuple)) and all(isinstance(t, str) and t for t in texts)

    def normalize(self, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value)


@dataclass
class Option:
    """How an option is declared.

    Attributes:
        default: default value.
        range: valid values.
        help: text without a final period; `{name}` stands for the name of another option.
        metavar: name of the value in `--help`.
        details: further sentences for the reference page.
        group: title of the group in `--help` and on the reference page.
        flags: names on the command line; by default, the name with hyphens.
        default_text: meaning of the default, for `--help`.
        json_name: name in OpenAI's or vLLM's protocol, where it differs.
        is_model_default: whether a model's generation_config.json can set the default.
    """

    default: Any
    range: Range
    help: str
    metavar: str
    details: str = ""
    group: str = ""
    flags: tuple[str, ...] = ()
    default_text: str = ""
    json_name: str = ""
    is_model_default: bool = False


def option(default: Any, range: Range, help: str, **more: Any) -> Any:
    """Return a dataclass field that declares an option; see the attributes of `Option`."""
    declared = Option(default, range, help, **{"metavar": range.metavar, **more})
    return field(default=default, metadata={"option": declared})


@cache
def options_of(declaration: Any) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name."""
    return {item.name: item.metadata["option"] for item in fields(declaration)}


def check_options(instance: object) -> None:
    """Check the values of a dataclass of options, and normalize them.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """
    declaration: Any = type(instance)
    for name, declared in options_of(declaration).items():
        value = declared.range.check(name, getattr(instance, name))
        object.__setattr__(instance, name, value)  # the dataclass may be frozen


class _CodeNotation(Notation):
    """Names of options as code, so that `stop` cannot be read as a verb."""

    def name(self, argument: str) -> str:
        return f"`{argument}`"


def help_text(declaration: type, text: str, notation: Notation | None = None) -> str:
    """Return a help text with the names of options in a notation."""
    notation = notation or Notation()
    return text.format_map({name: notation.name(name) for name in options_of(declaration)})


def meaning(declaration: type, name: str) -> str:
    """Return the help, the valid values and the details of the option `name`."""
    declared = options_of(declaration)[name]
    text = help_text(declaration, declared.help, _CodeNotation())
    details = help_text(declaration, declared.details, _CodeNotation())
    return f"{text}. Value: {declared.range.words()}. {details}".rstrip()


def attributes_text(declaration: type) -> str:
    """Return the section "Attributes" of the docstring of a dataclass of options."""
    lines = (f"        {name}: {meaning(declaration, name)}" for name in options_of(declaration))
    return "\n".join(["    Attributes:", *lines])
