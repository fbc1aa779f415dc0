"""The arguments that say how to continue a text, for every command that does."""

import argparse
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from gpt2np.cli.text_input import argument
from gpt2np.errors import ContextLengthError, InvalidArgumentError


def add_generation_arguments(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Declare them, in groups; those for `several` continuations only if asked for."""
    _add_length(parser.add_argument_group("how long"))
    _add_sampling(parser.add_argument_group("what is likely"))
    _add_penalties(parser.add_argument_group("what is avoided"))
    _add_form(parser.add_argument_group("what form"))
    if several:
        _add_search(parser.add_argument_group("several continuations"))
    speed = parser.add_argument_group("speed").add_argument
    speed(
        "--prompt-lookup",
        action="store_true",
        default=None,
        help="guess what the text said before in the same place; same result, faster where it "
        "repeats itself",
    )


def _add_length(group: Any) -> None:
    add = group.add_argument
    add(
        "-n",
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="at most N, as far as the context reaches (default: 200)",
    )
    add("--min-new-tokens", type=int, metavar="N", help="no end of text before N tokens")
    add("--ignore-eos", action="store_true", default=None, help="no end of text at all")
    add(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end before this text (a line's end: $'\\n'); may be given several times",
    )
    add(
        "--stop-regex",
        action="append",
        metavar="PATTERN",
        help="end before what matches; may be given several times",
    )
    add(
        "--stop-id",
        action="append",
        type=int,
        metavar="ID",
        help="end before this token; may be given several times",
    )
    add(
        "--window",
        type=int,
        metavar="K",
        help="when the context is full, go on with its last K tokens (default: end there)",
    )


def _add_sampling(group: Any) -> None:
    add = group.add_argument
    add("--greedy", action="store_true", help="always the likeliest token; same as --temperature 0")
    add("--temperature", type=float, metavar="T", help="0: greedy, higher: wilder (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="among the K likeliest; 0: no limit (default: 40)")
    add("--top-p", type=float, metavar="P", help="among the likeliest that reach P (default: 1.0)")
    add("--min-p", type=float, metavar="P", help="at least P times as likely as the likeliest")
    add("--typical-p", type=float, metavar="P", help="among those of usual surprise that reach P")
    add("--seed", type=int, metavar="SEED", help="the same seed, the same text (default: random)")


def _add_penalties(group: Any) -> None:
    add = group.add_argument
    add("--repetition-penalty", type=float, metavar="X", help="above 1: fewer tokens seen before")
    add("--presence-penalty", type=float, metavar="X", help="fewer tokens generated before")
    add("--frequency-penalty", type=float, metavar="X", help="the same, more so each time")
    add("--no-repeat-ngram-size", type=int, metavar="N", help="no run of N tokens comes twice")
    add(
        "--bad-word",
        action="append",
        metavar="TEXT",
        help="never these tokens in a row; may be given several times",
    )
    add(
        "--logit-bias",
        action="append",
        metavar="ID=X",
        help="add X to a token's logit; may be given several times",
    )


def _add_form(group: Any) -> None:
    add = group.add_argument
    add("--choices", nargs="+", metavar="TEXT", help="one of these texts, exactly as written")
    add(
        "--regex",
        metavar="PATTERN",
        help="a text that matches as a whole, with or without ^ and $ around it; no other anchors, "
        "no look-around, no back-references",
    )


def _add_search(group: Any) -> None:
    add = group.add_argument
    add(
        "--samples",
        dest="num_return_sequences",
        type=int,
        metavar="N",
        help="N texts, at most 1000: of the seeds SEED, SEED + 1, ..., or of the best beams",
    )
    add(
        "--best-of",
        type=int,
        metavar="N",
        help="draw N, at most 1000, and print the likeliest by mean log prob.",
    )
    add(
        "--num-beams",
        type=int,
        metavar="N",
        help="search with N beams, at most 64, instead of drawing",
    )
    add("--length-penalty", type=float, metavar="X", help="above 0: longer beams (default: 1.0)")
    add(
        "--early-stopping",
        choices=("true", "false", "never"),
        help="whether beam search ends when N are done (default: false)",
    )


_NAMES = (
    *("max_new_tokens", "min_new_tokens", "ignore_eos", "window", "temperature", "top_k", "top_p"),
    *("min_p", "typical_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("no_repeat_ngram_size", "num_return_sequences", "best_of", "num_beams", "length_penalty"),
    *("prompt_lookup", "logprobs", "prompt_logprobs"),
)
_TYPED = {
    "bad_words": "--bad-word",
    "bad_words_ids": "--bad-word",
    "stop_token_ids": "--stop-id",
}  # all others are as their names
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")  # of what is drawn from


def options_from(args: argparse.Namespace) -> Any:
    """The options of `LanguageModel.generate` that were given.

    Raises:
        InvalidArgumentError: they contradict each other, or are no numbers or texts.
    """
    if args.greedy:
        other = ("temperature",) if args.temperature else ()  # 0 says the same
        _refuse_beside("--greedy", args, (*other, *_FILTERS))
    options: dict[str, Any] = {name: getattr(args, name, None) for name in _NAMES}
    if args.greedy:
        options["temperature"] = 0.0
    if early := getattr(args, "early_stopping", None):
        options["early_stopping"] = {"true": True, "false": False}.get(early, "never")
    options["stop"] = _texts(args.stop, "--stop")
    options["stop_regex"] = _texts(args.stop_regex, "--stop-regex")
    options["stop_token_ids"] = args.stop_id
    options["choices"] = _texts(args.choices, "--choices")
    options["regex"] = None if args.regex is None else argument(args.regex, "--regex")
    options["bad_words"] = _texts(args.bad_word, "--bad-word")
    options["logit_bias"] = dict(map(_bias, args.logit_bias)) if args.logit_bias else None
    return {name: value for name, value in options.items() if value is not None}


def refuse_without_effect(args: argparse.Namespace, *, searched: bool) -> None:
    """Refuse what was given for beam search without one (`searched`), or for drawing beside it.

    Only what was given counts, not what the model proposes. A seed beside --greedy is let pass: the
    same seed gives the same text there, too.

    Raises:
        InvalidArgumentError: names the two options.
    """
    if args.num_beams is not None and args.num_beams > 1:
        _refuse_beside("--num-beams", args, (*_FILTERS, "seed", "draft"))
    for name in ("length_penalty", "early_stopping"):
        if not searched and getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{_as_typed(name)} is for beam search; give --num-beams, too, or leave it out"
            )


def _refuse_beside(option: str, args: argparse.Namespace, names: Iterable[str]) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"{option} and {_as_typed(name)} contradict each other; give one"
            )


@contextmanager
def options_as_typed() -> Iterator[None]:
    """Let errors of the library call options as the command line does."""
    try:
        yield
    except (InvalidArgumentError, ContextLengthError) as error:
        raise type(error)(_retyped(str(error))) from error


def _retyped(message: str) -> str:
    """The message with options as they are typed; but not what is quoted, nor plain words."""
    from gpt2np.generation import GenerationOptions

    names = [each.name for each in fields(GenerationOptions)]
    whole = "|".join(name for name in names if "_" in name)
    words = "|".join(name for name in names if "_" not in name)
    found = re.compile(
        r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|"""
        rf"\b(?P<name>{whole}|(?:{words})(?= is | and |: |, | nor | to | above | -?\d|$))\b"
    )
    return found.sub(lambda m: _as_typed(m["name"]) if m["name"] else m[0], message)


def _as_typed(name: str) -> str:
    return _TYPED.get(name, f"--{name.replace('_', '-')}")


def _texts(given: list[str] | None, name: str) -> list[str] | None:
    return None if given is None else [argument(text, name) for text in given]


def _bias(given: str) -> tuple[int, float]:
    token_id, _, value = given.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--logit-bias is {given!r}; it must be an id and a number, as in 50256=-5"
        ) from error
