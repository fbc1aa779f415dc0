"""Arguments of the command line that follow from declared options; see `gpt2np.options`."""

import argparse
from collections.abc import Collection, Iterable
from typing import Any

from gpt2np.cli.parser import FLAGS, spelled
from gpt2np.options import Option, options_of


def add_option(group: Any, declaration: type, name: str, **changes: Any) -> None:
    """Add the option `name` of a dataclass to a parser or group. A missing value is None.

    `changes` are keyword arguments of `add_argument` that replace those of the declaration.
    """
    option = options_of(declaration)[name]
    FLAGS[name] = next(flag for flag in option.flags if flag.startswith("--"))
    keywords = {"dest": name, **_value_keywords(option)}
    text = spelled(option.help)
    text += "" if changes.get("required") else _default_text(option)
    keywords["help"] = text.replace("%", "%%")
    group.add_argument(*option.flags, **keywords | changes)


def add_options(group: Any, declaration: type, names: Iterable[str]) -> None:
    """Add several options of a dataclass to a parser or group."""
    for name in names:
        add_option(group, declaration, name)


def add_groups(
    parser: argparse.ArgumentParser,
    declaration: type,
    omit: Collection[str] = (),
    without_flag: Collection[str] = (),
) -> "dict[str, argparse._ArgumentGroup]":
    """Add the options of a dataclass in groups. Returns the groups by title.

    The groups `omit` and the options `without_flag` are left out.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, option in options_of(declaration).items():
        if option.group not in omit and name not in without_flag:
            if option.group not in groups:
                groups[option.group] = parser.add_argument_group(option.group)
            add_option(groups[option.group], declaration, name)
    return groups


def given_options(args: argparse.Namespace, declaration: type) -> dict[str, Any]:
    """Return the options of a dataclass that are given on the command line."""
    given = {name: getattr(args, name, None) for name in options_of(declaration)}
    return {name: value for name, value in given.items() if value is not None}


def _value_keywords(option: Option) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for the value of an option."""
    if option.item_type is bool and not option.choices:
        action = argparse.BooleanOptionalAction if option.default else "store_true"
        return {"action": action, "default": None}
    if option.choices:
        return {"choices": [str(value).lower() for value in option.choices]}
    keywords: dict[str, Any] = {"action": "append"} if option.is_list else {}
    if option.item_type in (int, float):
        keywords["type"] = option.item_type
    return keywords | {"metavar": option.metavar}


def _default_text(option: Option) -> str:
    if option.item_type is bool and not option.choices:
        return " (default)" if option.default else ""
    notes = ["may be given several times"] if option.is_list else []
    if option.item_type is int and option.high is not None:
        notes.append(f"at most {option.high}")
    default = option.default_text or (None if option.is_list else option.default)
    if default is not None:
        notes.append(f"default: {str(default).lower() if default is False else default}")
    return f" ({'; '.join(notes)})" if notes else ""
