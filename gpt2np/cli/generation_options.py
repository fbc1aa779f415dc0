"""Command-line options of generation, and their conversion to options of the library."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from gpt2np.cli.text_input import decode_argument
from gpt2np.errors import ContextLengthError, InvalidArgumentError

Add = Callable[..., object]
"""The method `add_argument` of a parser or an argument group."""

_HELP = {
    "--draft": "Source of draft tokens, for speed; the output is the same: smaller MODEL, n-gram "
    "table FILE.safetensors, auto (n-grams of the text so far and the model's table) or none "
    "(default: auto)",
    "--temperature": "Sampling temperature; 0 selects the most likely token (default: 0.8)",
    "--greedy": "Always select the most likely token (temperature 0)",
    "--top-k": "Sample from the K most likely tokens; 0 disables the filter (default: 40)",
    "--top-p": "Sample from the most likely tokens with total probability P (default: 1.0)",
    "--min-p": "Exclude tokens with less than P times the probability of the most likely token "
    "(default: 0.0)",
    "--typical-p": "Locally typical sampling with total probability P (default: 1.0)",
    "--seed": "Random seed; the same seed gives the same text (default: random)",
    "--samples": "Generate N texts, at most 1000, with seeds SEED, SEED + 1, ..., or return the N "
    "best beams (default: 1)",
    "--best-of": "Sample N texts, at most 1000, and return those with the highest mean log "
    "probability",
    "--num-beams": "Use beam search with N beams, at most 64, instead of sampling (default: 1)",
    "--length-penalty": "Exponent of the length that divides a beam's score; above 0 favors "
    "longer texts (default: 1.0)",
    "--early-stopping": "Stop at N finished beams (true), when no better beam is likely (false), "
    "or when none is possible (never) (default: false)",
    "--repetition-penalty": "Penalize tokens of the prompt and the generated text; above 1 "
    "discourages repetition (default: 1.0)",
    "--presence-penalty": "Subtract X from the logits of generated tokens (default: 0.0)",
    "--frequency-penalty": "Subtract X from the logits of generated tokens, once per occurrence "
    "(default: 0.0)",
    "--no-repeat-ngram-size": "Forbid repeated n-grams of N tokens; 0 disables the check "
    "(default: 0)",
    "--bad-word": "Forbid this text; can be repeated",
    "--logit-bias": "Add X to the logit of token ID, as in 50256=-5; can be repeated",
    "--max-new-tokens": "Maximum number of tokens to generate (default: 200)",
    "--min-new-tokens": "Forbid the end-of-text token before N tokens (default: 0)",
    "--ignore-eos": "Forbid the end-of-text token",
    "--stop": "Stop before this text, such as $'\\n'; can be repeated",
    "--stop-regex": "Stop before a match of this regular expression; can be repeated",
    "--stop-id": "Stop before this token ID; can be repeated",
    "--window": "When the context is full, continue with the last K tokens instead of stopping",
    "--choices": "Generate exactly one of these texts",
    "--regex": "Generate a text that fully matches this regular expression; look-around, "
    "back-references and inner anchors are not supported",
}


def add_generation_arguments(parser: argparse.ArgumentParser, *, multiple: bool = True) -> None:
    """Declare the options of generation.

    `multiple` declares the options for several texts per prompt, too.
    """
    add: Add = parser.add_argument_group("Sampling").add_argument
    add("--temperature", type=float, metavar="T", help=_HELP["--temperature"])
    add("--greedy", action="store_true", help=_HELP["--greedy"])
    add("--top-k", type=int, metavar="K", help=_HELP["--top-k"])
    for name in ("--top-p", "--min-p", "--typical-p"):
        add(name, type=float, metavar="P", help=_HELP[name])
    add("--seed", type=int, metavar="SEED", help=_HELP["--seed"])
    if multiple:
        samples, name = _HELP["--samples"], "num_return_sequences"
        add("--samples", dest=name, type=int, metavar="N", help=samples)
        add("--best-of", type=int, metavar="N", help=_HELP["--best-of"])
        add = parser.add_argument_group("Beam search").add_argument
        add("--num-beams", type=int, metavar="N", help=_HELP["--num-beams"])
        add("--length-penalty", type=float, metavar="X", help=_HELP["--length-penalty"])
        add("--early-stopping", choices=("true", "false", "never"), help=_HELP["--early-stopping"])
    add = parser.add_argument_group("Penalties").add_argument
    for name in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        add(name, type=float, metavar="X", help=_HELP[name])
    add("--no-repeat-ngram-size", type=int, metavar="N", help=_HELP["--no-repeat-ngram-size"])
    add("--bad-word", action="append", metavar="TEXT", help=_HELP["--bad-word"])
    add("--logit-bias", action="append", metavar="ID=X", help=_HELP["--logit-bias"])
    add = parser.add_argument_group("Stopping").add_argument
    add("-n", "--max-new-tokens", type=int, metavar="N", help=_HELP["--max-new-tokens"])
    add("--min-new-tokens", type=int, metavar="N", help=_HELP["--min-new-tokens"])
    add("--ignore-eos", action="store_true", default=None, help=_HELP["--ignore-eos"])
    add("--stop", action="append", metavar="TEXT", help=_HELP["--stop"])
    add("--stop-regex", action="append", metavar="PATTERN", help=_HELP["--stop-regex"])
    add("--stop-id", action="append", type=int, metavar="ID", help=_HELP["--stop-id"])
    add("--window", type=int, metavar="K", help=_HELP["--window"])
    add = parser.add_argument_group("Constraints").add_argument
    add("--choices", nargs="+", metavar="TEXT", help=_HELP["--choices"])
    add("--regex", metavar="PATTERN", help=_HELP["--regex"])


def add_draft(add: Add) -> None:
    """Declare --draft."""
    add("--draft", metavar="MODEL|FILE|auto|none", help=_HELP["--draft"])


_NAMES = (
    *("max_new_tokens", "min_new_tokens", "ignore_eos", "window", "temperature", "top_k", "top_p"),
    *("min_p", "typical_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("no_repeat_ngram_size", "num_return_sequences", "best_of", "num_beams", "length_penalty"),
    *("logprobs", "prompt_logprobs"),
)
_OPTION_NAMES = {
    "bad_words": "--bad-word",
    "bad_words_ids": "--bad-word",
    "stop_token_ids": "--stop-id",
    "num_return_sequences": "--samples",
}  # library name → option, where the two names differ
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")


def generation_options(args: argparse.Namespace) -> Any:
    """Return the given options as keyword arguments of `LanguageModel.generate`.

    Raises:
        InvalidArgumentError: --greedy contradicts another option, or a value is malformed.
    """
    if args.greedy:
        temperature = (
            ("temperature",) if args.temperature else ()
        )  # temperature 0 does not contradict --greedy
        _check_contradictions("--greedy", args, (*temperature, *_FILTERS))
    options: dict[str, Any] = {name: getattr(args, name, None) for name in _NAMES}
    if args.greedy:
        options["temperature"] = 0.0
    if early := getattr(args, "early_stopping", None):
        options["early_stopping"] = {"true": True, "false": False}.get(early, "never")
    options["stop"] = _decode_all(args.stop, "--stop")
    options["stop_regex"] = _decode_all(args.stop_regex, "--stop-regex")
    options["stop_token_ids"] = args.stop_id
    options["choices"] = _decode_all(args.choices, "--choices")
    options["regex"] = None if args.regex is None else decode_argument(args.regex, "--regex")
    options["bad_words"] = _decode_all(args.bad_word, "--bad-word")
    options["logit_bias"] = dict(map(_parse_bias, args.logit_bias)) if args.logit_bias else None
    return {name: value for name, value in options.items() if value is not None}


def check_beam_options(args: argparse.Namespace, *, beam_search: bool) -> None:
    """Check that sampling options and beam search options fit the search.

    --num-beams above 1 excludes sampling options. Beam search options require `beam_search`. Only
    options on the command line count, not the model's defaults. --seed is valid with --greedy:
    every seed gives the same text.

    Raises:
        InvalidArgumentError: two options contradict each other; the message names both.
    """
    if args.num_beams is not None and args.num_beams > 1:
        _check_contradictions("--num-beams", args, (*_FILTERS, "seed"))
        if args.draft not in (None, "auto", "none"):
            raise InvalidArgumentError("--num-beams and --draft contradict each other; give one")
    for name in ("length_penalty", "early_stopping"):
        if not beam_search and getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{_option_name(name)} is for beam search; add --num-beams or leave it out"
            )


def _check_contradictions(option: str, args: argparse.Namespace, names: Iterable[str]) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{option} and {_option_name(name)} contradict each other; give one"
            )


@contextmanager
def option_names_in_errors() -> Iterator[None]:
    """Replace library names such as `top_k` in error messages by options such as --top-k."""
    try:
        yield
    except (InvalidArgumentError, ContextLengthError) as error:
        raise type(error)(_replace_names(str(error))) from error


def _replace_names(message: str) -> str:
    """Replace option names in a message, except in quoted text and where they are plain words."""
    from gpt2np.generation import GenerationOptions

    names = [field.name for field in fields(GenerationOptions)]
    compounds = "|".join(name for name in names if "_" in name)
    words = "|".join(name for name in names if "_" not in name)
    pattern = re.compile(
        r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|"""
        rf"\b(?P<name>{compounds}|(?:{words})(?= is | and |: |, | nor | to | above | -?\d|$))\b"
    )
    return pattern.sub(lambda m: _option_name(m["name"]) if m["name"] else m[0], message)


def _option_name(name: str) -> str:
    return _OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")


def _decode_all(texts: list[str] | None, name: str) -> list[str] | None:
    return None if texts is None else [decode_argument(text, name) for text in texts]


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--logit-bias is {text!r}; it must be ID=X, as in 50256=-5"
        ) from error
