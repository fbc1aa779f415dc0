"""The command line's options for generation, and their conversion to keyword arguments."""

import argparse
from collections.abc import Collection
from typing import Any

from gpt2np.cli.declared_options import add_groups, add_option, add_options
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import GenerationOptions
from gpt2np.options import options_of

_COMMON = ("max_new_tokens", "top_k", "top_p", "seed", "stop")
_WITHOUT_FLAG = ("bad_words_ids", "draft")  # --bad-word takes texts; load_model reads --draft


def add_generation_arguments(parser: argparse.ArgumentParser, omit: Collection[str] = ()) -> None:
    """Declare the options for generation, except the groups `omit`; the common ones first."""
    add_options(parser, GenerationOptions, _COMMON)
    either = parser.add_mutually_exclusive_group()
    add_option(either, GenerationOptions, "temperature")
    text = "Always select the most likely token, as --temperature 0 does"
    either.add_argument("--greedy", dest="temperature", action="store_const", const=0.0, help=text)
    parser.epilog = "The generation_config.json of a model can replace the defaults of generation."
    add_groups(parser, GenerationOptions, omit, ("temperature", *_COMMON, *_WITHOUT_FLAG))


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Convert the options that are given to keyword arguments of `LanguageModel.generate`."""
    options: dict[str, Any] = {}
    for name, option in options_of(GenerationOptions).items():
        value = None if name in _WITHOUT_FLAG else getattr(args, name, None)
        if value is None:
            continue
        if option.choices:
            value = {str(choice).lower(): choice for choice in option.choices}[value]
        elif name == "logit_bias":
            value = dict(map(_parse_bias, value))
        options[name] = option.check(value)  # before a model is downloaded
    return options


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--logit-bias is {text!r}; it must be ID=X, as in 50256=-5"
        ) from error
