"""Command-line options for generation, and their conversion to keyword arguments."""

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
    "--prompt-lookup": "Speculative decoding with draft tokens from earlier n-grams of the text; "
    "does not change the text",
    "--temperature": "Sampling temperature; 0 selects the most likely token (default: 0.8)",
    "--greedy": "Always select the most likely token (temperature 0)",
    "--top-k": "Sample from the K most likely tokens; 0 disables the filter (default: 40)",
    "--top-p": "Sample from the smallest set of most likely tokens with total probability P "
    "(default: 1.0)",
    "--min-p": "Exclude tokens less than P times as likely as the most likely token (default: 0.0)",
    "--typical-p": "Locally typical sampling: sample from the tokens with surprisal closest to the "
    "entropy, with total probability P (default: 1.0)",
    "--seed": "Random seed; the same seed gives the same text (default: random)",
    "--samples": "Print N texts, at most 1000: samples with the seeds SEED, SEED + 1, ..., or the "
    "best texts of a beam search (default: 1)",
    "--best-of": "Sample N texts, at most 1000; print the best by mean log probability, as many as "
    "--samples",
    "--num-beams": "Use beam search with N beams, at most 64, instead of sampling (default: 1)",
    "--length-penalty": "Divide the log probability of a text by its length to the power X; a "
    "higher X favors longer texts (default: 1.0)",
    "--early-stopping": "After N beams have ended, stop the search at once (true), when no running "
    "beam scores higher (false), or when no running beam can score higher (never) (default: "
    "false)",
    "--repetition-penalty": "Penalize tokens that are in the prompt or the generated text; X above "
    "1 discourages repetition (default: 1.0)",
    "--presence-penalty": "Subtract X from the logit of each token that has been generated "
    "(default: 0.0)",
    "--frequency-penalty": "Subtract X from the logit of a token for each time that it has been "
    "generated (default: 0.0)",
    "--no-repeat-ngram-size": "Forbid n-grams of N tokens that the text already contains; 0 allows "
    "them (default: 0)",
    "--bad-word": "Never generate TEXT; may be given several times",
    "--logit-bias": "Add X to the logit of token ID, as in 50256=-5; may be given several times",
    "--max-new-tokens": "Maximum number of tokens to generate (default: 200)",
    "--min-new-tokens": "Generate at least N tokens before the end-of-text token (default: 0)",
    "--ignore-eos": "Never generate the end-of-text token",
    "--stop": "End the output before TEXT, such as $'\\n'; may be given several times",
    "--stop-regex": "End the output before a match of PATTERN; may be given several times",
    "--stop-id": "End the output before the token with this ID; may be given several times",
    "--window": "When the context is full, continue from only the last K tokens (default: stop)",
    "--choices": "Generate exactly one of these texts",
    "--regex": "Generate a text that fully matches this regular expression; look-around, "
    "back-references and inner anchors are not supported",
}


def add_generation_arguments(parser: argparse.ArgumentParser, *, multiple: bool = True) -> None:
    """Declare the options for generation.

    `multiple` includes beam search and the options for several texts per prompt.
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


def add_prompt_lookup(add: Add) -> None:
    """Declare --prompt-lookup."""
    add("--prompt-lookup", action="store_true", default=None, help=_HELP["--prompt-lookup"])


_NAMES = (
    *("max_new_tokens", "min_new_tokens", "ignore_eos", "window", "temperature", "top_k", "top_p"),
    *("min_p", "typical_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("no_repeat_ngram_size", "num_return_sequences", "best_of", "num_beams", "length_penalty"),
    *("prompt_lookup", "logprobs", "prompt_logprobs"),
)
_OPTION_NAMES = {
    "bad_words": "--bad-word",
    "bad_words_ids": "--bad-word",
    "stop_token_ids": "--stop-id",
    "num_return_sequences": "--samples",
}  # library name → option, where the two names differ
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")


def generation_options(args: argparse.Namespace) -> Any:
    """Convert the options that are given to keyword arguments of `LanguageModel.generate`.

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
    """Check that no option on the command line contradicts the search method.

    --num-beams above 1 excludes --seed, --draft, and filters such as --top-k. --length-penalty and
    --early-stopping require `beam_search`. The model's default options are not checked.

    Raises:
        InvalidArgumentError: an option does not fit the search method.
    """
    if args.num_beams is not None and args.num_beams > 1:
        _check_contradictions("--num-beams", args, (*_FILTERS, "seed", "draft"))
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
    """Replace names such as `top_k` by options such as --top-k in the messages of errors."""
    try:
        yield
    except (InvalidArgumentError, ContextLengthError) as error:
        raise type(error)(_replace_names(str(error))) from error


def _replace_names(message: str) -> str:
    """Replace the names of keyword arguments in a message by command-line options.

    Quoted text is unchanged. Names without "_", such as "stop", can also be plain words: they are
    replaced only before certain words and symbols.
    """
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
