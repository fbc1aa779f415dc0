"""Options that are declared once: dataclass fields with bounds, a help text and their names.

    @dataclass(frozen=True)
    class Sampling:
        top_p: float = option(1.0, "Nucleus sampling", above=0, high=1, metavar="P")

The annotation gives the type and the choices. The checks of values, the command line, the HTTP
server, the plugin for `llm` and the reference pages all follow from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpt2np.errors import InvalidArgumentError, check_argument, is_integer

_METAVARS = {int: "N", float: "X", str: "TEXT"}


@dataclass(kw_only=True)
class Option:
    """How an option is declared.

    Attributes:
        default: default value.
        help: text without a final period; names of options are in backticks.
        low: least valid number, also of a list's items.
        high: greatest valid number.
        above: number that valid numbers exceed.
        convert: function that converts another form of the value to the annotated type; a
            ValueError means that the value is invalid.
        noun: the valid values in words, if the type and the bounds do not say it.
        metavar: name of the value in `--help`.
        details: further sentences for the reference page.
        group: title of the group in `--help` and on the reference page.
        flags: names on the command line; by default, the name with hyphens.
        default_text: meaning of the default, for `--help`.
        json_name: name in OpenAI's or vLLM's protocol, where it differs.
        name: the field's name.
        annotation: the field's annotation.
    """

    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    convert: Callable[[Any], Any] | None = None
    noun: str = ""
    metavar: str = ""
    details: str = ""
    group: str = ""
    flags: tuple[str, ...] = ()
    default_text: str = ""
    json_name: str = ""
    name: str = ""
    annotation: Any = None

    @cached_property
    def types(self) -> tuple[Any, ...]:
        """The types of the annotation, without None: (int,) for `int | None`."""
        is_union = get_origin(self.annotation) in (Union, UnionType)
        types = get_args(self.annotation) if is_union else (self.annotation,)
        return tuple(kind for kind in types if kind is not NoneType)

    @cached_property
    def choices(self) -> tuple[bool | str, ...]:
        """The valid values, if there are only a few and one of them is a text."""
        literals = [get_args(kind) for kind in self.types if get_origin(kind) is Literal]
        texts = tuple(value for values in literals for value in values)
        if texts and all(kind is bool or get_origin(kind) is Literal for kind in self.types):
            return (True, False, *texts) if bool in self.types else texts
        return ()

    @cached_property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return get_origin(self.types[0]) is tuple

    @cached_property
    def item_type(self) -> Any:
        """The type of a list's items, or of the value."""
        return get_args(self.types[0])[0] if self.is_list else self.types[0]

    def words(self) -> str:
        """Return the valid values in words."""
        if self.noun:
            return self.noun
        if self.choices:
            *first, last = map(repr, self.choices)
            return " or ".join(filter(None, [", ".join(first), last]))
        nouns = {str: "a non-empty text", bool: "True or False", tuple: "a list of non-empty texts"}
        kind = self.types[0]
        return nouns.get(get_origin(kind) or kind) or self._number_words()

    def _number_words(self) -> str:
        noun = "an integer" if self.types[0] is int else "a number"
        if self.above is not None:
            return f"{noun} above {self.above}" + (f" and at most {self.high}" * bool(self.high))
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low} to {self.high}"
        return noun if self.low is None else f"{noun}, at least {self.low}"

    def check(self, value: Any) -> Any:
        """Return a value in the form that the dataclass holds.

        Raises:
            InvalidArgumentError: the value is out of its range.
        """
        check_no_array(self.name, value)
        try:
            checked = self.convert(value) if self.convert and value is not None else value
            checked = _as_tuple(checked) if self.is_list else checked
            is_valid = self._is_valid(self.annotation, checked)
        except InvalidArgumentError:
            raise
        except (ValueError, TypeError):
            is_valid = False
        check_argument(is_valid, self.name, value, self.words())
        return checked

    def _is_valid(self, kind: Any, value: Any) -> bool:
        """Return whether a value has a type, and numbers are within the bounds."""
        if kind is int or kind is float:
            if not (is_integer if kind is int else is_number)(value):
                return False
            low = -math.inf if self.low is None else self.low
            is_above = self.above is None or value > self.above
            return is_above and bool(low <= value <= (math.inf if self.high is None else self.high))
        if get_origin(kind) in (Union, UnionType):
            return any(self._is_valid(part, value) for part in get_args(kind))
        if get_origin(kind) is Literal:
            return isinstance(value, str) and value in get_args(kind)
        if get_origin(kind) is not tuple:
            return isinstance(value, kind) and value != ""
        parts = get_args(kind)
        parts = parts[:1] * len(value) if isinstance(value, tuple) and parts[-1] is ... else parts
        is_tuple = isinstance(value, tuple) and len(value) == len(parts)
        return is_tuple and all(
            self._is_valid(part, item) and item != ()
            for part, item in zip(parts, value, strict=True)
        )


def _as_tuple(value: Any) -> Any:
    """Convert a list, and the lists in it, to a tuple, and NumPy's integers to Python's."""
    if is_integer(value):
        return int(value)
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


def option(default: Any, help: str, **more: Any) -> Any:
    """Return a dataclass field that declares an option; see the attributes of `Option`."""
    declared = Option(default=default, help=help, **more)
    return field(default=default, metadata={"option": declared})


@cache
def options_of(declaration: Any) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name."""
    annotations = get_type_hints(declaration)
    declared = {item.name: item.metadata["option"] for item in fields(declaration)}
    for name, item in declared.items():
        item.name, item.annotation = name, annotations[name]
        item.flags = item.flags or (f"--{name.replace('_', '-')}",)
        item.metavar = item.metavar or _METAVARS.get(item.item_type, "X")
    return declared


def check_options(instance: object) -> None:
    """Check the values of a dataclass of options, and put lists into the form of tuples.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """
    declaration: Any = type(instance)
    for name, declared in options_of(declaration).items():
        value = getattr(instance, name)
        if value is not declared.default:
            object.__setattr__(instance, name, declared.check(value))  # it may be frozen


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


def meaning(declaration: type, name: str) -> str:
    """Return the help, the valid values and the details of the option `name`."""
    declared = options_of(declaration)[name]
    return f"{declared.help}. Value: {declared.words()}. {declared.details}".rstrip()


def attributes_text(declaration: type) -> str:
    """Return the section "Attributes" of the docstring of a dataclass of options."""
    lines = (f"        {name}: {meaning(declaration, name)}" for name in options_of(declaration))
    return "\n".join(["    Attributes:", *lines])
