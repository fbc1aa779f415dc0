"""The command line's options for generation, and their conversion to keyword arguments."""

import argparse
from collections.abc import Collection
from typing import Any

from gpt2np.cli.declared_options import add_groups, long_flag
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import decode_argument
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import GenerationOptions
from gpt2np.options import options_of

_WITHOUT_FLAG = ("bad_words_ids", "draft")  # --bad-word takes texts; load_model reads --draft
_OPTIONS = {n: o for n, o in options_of(GenerationOptions).items() if n not in _WITHOUT_FLAG}


def add_generation_arguments(
    parser: argparse.ArgumentParser, omit: Collection[str] = ()
) -> "dict[str, argparse._ArgumentGroup]":
    """Declare the options for generation, except the groups `omit`. Returns the groups by title."""
    groups = add_groups(parser, GenerationOptions, omit, _WITHOUT_FLAG)
    text = "Always select the most likely token (temperature 0)"
    groups["Sampling"].add_argument("--greedy", action="store_true", default=None, help=text)
    return groups


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Convert the options that are given to keyword arguments of `LanguageModel.generate`."""
    if args.greedy and args.temperature:
        raise InvalidArgumentError("--greedy and --temperature contradict each other; give one")
    options: dict[str, Any] = {"temperature": 0.0} if args.greedy else {}
    for name, option in _OPTIONS.items():
        value, flag = getattr(args, name, None), flag_of(name)
        if value is None:
            continue
        if option.is_list and option.item_type is str:
            value = [decode_argument(text, flag) for text in value]
            if name != "stop_regex" and any("\\n" in text for text in value):
                print_stderr(f"{flag} has a backslash and an n; a newline is $'\\n' in a shell")
        elif option.choices:
            value = {str(choice).lower(): choice for choice in option.choices}[value]
        elif option.item_type is str:
            value = decode_argument(value, flag)
        elif name == "logit_bias":
            value = dict(map(_parse_bias, value))
        options[name] = value
    return options


def flag_of(name: str) -> str:
    return long_flag(_OPTIONS[name], name)


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--logit-bias is {text!r}; it must be ID=X, as in 50256=-5"
        ) from error
