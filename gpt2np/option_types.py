"""Pydantic's types for declared options: the fields of HTTP requests and of the `llm` plugin."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from gpt2np.errors import short_repr
from gpt2np.options import Option

MAX_ENTRIES = 100_000  # of a list; pydantic copies a list for each of its errors


def _check_unicode(text: str) -> str:
    """Raise ValueError if a text has a lone surrogate, which UTF-8 can't express."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"lone surrogate at character {error.start}") from error
    return text


def _check_logit_bias(value: object) -> object:
    """Raise ValueError for the first wrong entry; pydantic's error would list all of them."""
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} entries")
    for key, bias in value.items() if isinstance(value, dict) else ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise ValueError(f"{short_repr(key)} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise ValueError(f"the bias of {key} is not a number")
    return value


T = TypeVar("T")
List = Annotated[list[T], Field(fail_fast=True, max_length=MAX_ENTRIES)]  # else, many errors
AnyText = Annotated[str, AfterValidator(_check_unicode)]
Text = Annotated[AnyText, Field(min_length=1)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Whole = BeforeValidator(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x)
LogitBias = Annotated[dict[str, float], BeforeValidator(_check_logit_bias)]


def option_type(option: Option) -> Any:
    """Return the type of a field for an option; `Option.check` finds what a type can't."""
    if option.choices:
        return Literal[option.choices]
    if option.is_list:
        items = {str: Text, int: TokenId, tuple[int, ...]: List[TokenId]}
        if option.item_type not in items:
            return LogitBias
        item: Any = items[option.item_type]
        kind: Any = List[item]
        return Text | kind if option.name == "stop" else kind
    if option.item_type in (int, float):
        bounds = {"ge": option.low, "gt": option.above, "le": option.high}
        given: Any = {name: bound for name, bound in bounds.items() if bound is not None}
        kind = Annotated[option.item_type, Field(**given)]
        return Annotated[kind, Whole] if option.item_type is int else kind
    return Text if option.item_type is str else option.item_type
