"""The command line's options for generation, and their conversion to keyword arguments."""

import argparse
from collections.abc import Collection, Iterable
from typing import Any

from gpt2np.cli.declared_options import add_groups, long_flag
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import decode_argument
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import Biases, GenerationOptions, Patterns
from gpt2np.options import OneOf, Text, Texts, options_of

_WITHOUT_FLAG = ("bad_words_ids", "draft")  # --bad-word takes texts; load_model reads --draft
_OPTIONS = {n: o for n, o in options_of(GenerationOptions).items() if n not in _WITHOUT_FLAG}
_RANDOM = [name for name, o in _OPTIONS.items() if o.group == "Sampling" and name != "temperature"]
"""Options that have no effect on a greedy text or a beam search."""


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
    if args.greedy or args.temperature == 0:  # both mean the same
        flag = "--greedy" if args.greedy else "--temperature 0"
        filters = [name for name in _RANDOM if name != "seed"]
        _check_contradictions(
            flag, args, [*(["temperature"] if args.temperature else []), *filters]
        )
    options: dict[str, Any] = {"temperature": 0.0} if args.greedy else {}
    for name, option in _OPTIONS.items():
        value, flag = getattr(args, name, None), flag_of(name)
        if value is None:
            continue
        if isinstance(option.range, Texts):
            value = [decode_argument(text, flag) for text in value]
            if not isinstance(option.range, Patterns) and any("\\n" in text for text in value):
                print_stderr(f"{flag} has a backslash and an n; a newline is $'\\n' in a shell")
        elif isinstance(option.range, Text):
            value = decode_argument(value, flag)
        elif isinstance(option.range, OneOf):
            value = {str(choice).lower(): choice for choice in option.range.values}[value]
        elif isinstance(option.range, Biases):
            value = dict(map(_parse_bias, value))
        options[name] = value
    return options


def check_beam_options(args: argparse.Namespace, *, beam_search: bool) -> None:
    """Raise InvalidArgumentError if an option on the command line contradicts the search method.

    --length-penalty and --early-stopping require `beam_search`: whether --num-beams or the model's
    default selects beam search. --num-beams above 1 excludes --seed, --draft, and filters such as
    --top-k.
    """
    if args.num_beams is not None and args.num_beams > 1:
        _check_contradictions("--num-beams", args, _RANDOM)
        if args.draft not in (None, "auto", "none"):
            raise InvalidArgumentError("--num-beams and --draft contradict each other; give one")
    for name in ("length_penalty", "early_stopping"):
        if not beam_search and getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{flag_of(name)} is for beam search; add --num-beams or leave it out"
            )


def _check_contradictions(flag: str, args: argparse.Namespace, names: Iterable[str]) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{flag} and {flag_of(name)} contradict each other; give one"
            )


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
