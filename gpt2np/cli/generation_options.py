"""Command-line options for generation, and their conversion to keyword arguments."""

import argparse
import re
from collections.abc import Callable, Iterable
from typing import Any

from gpt2np.cli.text_input import decode_argument
from gpt2np.errors import InvalidArgumentError

_OPTIONS = {
    "Sampling": """
--temperature T  Sampling temperature; 0 selects the most likely token (default: 0.8)
--greedy  Always select the most likely token (temperature 0)
--top-k K  Sample from the K most likely tokens; 0 disables the filter (default: 40)
--top-p P  Sample from the smallest set of most likely tokens with total probability P (default:
    1.0)
--min-p P  Exclude tokens less than P times as likely as the most likely token (default: 0.0)
--typical-p P  Locally typical sampling: sample from the tokens with surprisal closest to the
    entropy, with total probability P (default: 1.0)
--seed SEED  Random seed; the same seed gives the same text (default: random)
--samples --num-return-sequences N  Print N texts, at most 1000: samples with the seeds SEED, SEED +
    1, ..., or the best texts of a beam search (default: 1)
--best-of N  Sample N texts, at most 1000, and print the --samples best by mean log probability
""",
    "Beam search": """
--num-beams N  Use beam search with N beams, at most 64, instead of sampling (default: 1)
--length-penalty X  Divide the log probability of a text by its length to the power X; a higher X
    favors longer texts (default: 1.0)
--early-stopping true|false|never  After N beams have ended, stop the search at once (true), when no
    running beam scores higher (false), or when no running beam can score higher (never) (default:
    false)
""",
    "Penalties": """
--repetition-penalty X  Penalize tokens that are in the prompt or the generated text; X above 1
    discourages repetition (default: 1.0)
--presence-penalty X  Subtract X from the logit of each token that has been generated (default: 0.0)
--frequency-penalty X  Subtract X from the logit of a token for each time that it has been generated
    (default: 0.0)
--no-repeat-ngram-size N  Forbid n-grams of N tokens that the text already contains; 0 allows them
    (default: 0)
--bad-word TEXT...  Never generate TEXT; may be given several times
--logit-bias ID=X...  Add X to the logit of token ID, as in 50256=-5; may be given several times
""",
    "Stopping": """
-n --max-new-tokens N  Maximum number of tokens to generate (default: 200)
--min-new-tokens N  Generate at least N tokens before the end-of-text token (default: 0)
--max-time S  End the output after S seconds, with the text so far (default: no limit)
--ignore-eos  Never generate the end-of-text token
--stop TEXT...  End the output before TEXT, such as $'\\n'; may be given several times
--stop-regex PATTERN...  End the output before a match of PATTERN; may be given several times
--stop-id --stop-token-id ID...  End the output before the token with this ID; may be given several
    times
--window K  When the context is full, continue from only the last K tokens (default: stop)
""",
    "Constraints": """
--choice TEXT...  Generate exactly TEXT; give several times for a choice of texts
--regex PATTERN  Generate a text that fully matches this regular expression; look-around,
    back-references and inner anchors are not supported
""",
}
"""Group title → options with a metavar ("..." if the option may be repeated) and a help text."""
_TYPES = dict.fromkeys("TPXS", float) | dict.fromkeys(("K", "N", "ID", "SEED"), int)


def add_generation_arguments(parser: argparse.ArgumentParser, *, multiple: bool = True) -> None:
    """Declare the options for generation; `multiple` adds beam search, --samples and --best-of."""
    for title, options in _OPTIONS.items():
        if title == "Beam search" and not multiple:
            continue
        group = parser.add_argument_group(title)
        for line in re.sub(r"\n +", "  ", options).split("\n")[1:-1]:
            usage, *text = re.split("  +", line)
            flags = re.findall(r"-\S+", usage)
            metavar = " ".join(usage.split(" ")[len(flags) :])
            if multiple or flags[0] not in ("--samples", "--best-of"):
                group.add_argument(*flags, **_keywords(flags[0], metavar), help=" ".join(text))


def _keywords(flag: str, metavar: str) -> dict[str, Any]:
    """Return the keyword arguments of `ArgumentParser.add_argument` for the option `flag`."""
    if not metavar:
        return {"action": "store_true", "default": None}
    if "|" in metavar:
        return {"choices": metavar.split("|")}
    action = "append" if metavar.endswith("...") else "store"
    metavar = metavar.removesuffix("...")
    dest = {option: name for name, option in _OPTION_NAMES.items()}.get(flag)
    return {"action": action, "type": _TYPES.get(metavar), "metavar": metavar, "dest": dest}


def add_draft(add: Callable[..., object]) -> None:
    """Declare --draft."""
    draft = (
        "Source of draft tokens, which save time and do not change the text: a smaller MODEL with "
        "the same vocabulary, an n-gram table FILE.safetensors (see gpt2np train-draft), auto or "
        "none (default: auto, n-grams of the text so far and of the model's table)"
    )
    add("--draft", metavar="MODEL|FILE|auto|none", help=draft)


# library name → option, where the two names differ
_OPTION_NAMES = {
    "bad_words_ids": "--bad-word",
    "bad_words": "--bad-word",
    "choices": "--choice",
    "special_tokens": "--special-token",
    "stop_token_ids": "--stop-id",
    "num_return_sequences": "--samples",
}
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Convert the options that are given to keyword arguments of `LanguageModel.generate`.

    Imports NumPy, so call `set_threads` before.

    Raises:
        InvalidArgumentError: --greedy contradicts another option, or a value is malformed.
    """
    from gpt2np.generation import Options

    if args.greedy or args.temperature == 0:  # both mean the same
        option = "--greedy" if args.greedy else "--temperature 0"
        with_greedy = ("temperature",) if args.temperature else ()
        _check_contradictions(option, args, (*with_greedy, *_FILTERS))
    names = Options.__annotations__.keys() - {"draft"}  # load_model reads --draft
    given = {name: getattr(args, name, None) for name in sorted(names)}
    options = {name: value for name, value in given.items() if value is not None}
    if args.greedy:
        options["temperature"] = 0.0
    if "early_stopping" in options and args.early_stopping != "never":
        options["early_stopping"] = args.early_stopping == "true"
    for name in ("stop", "stop_regex", "choices", "bad_words"):
        if name in options:
            options[name] = [decode_argument(text, _option_name(name)) for text in options[name]]
    if "regex" in options:
        options["regex"] = decode_argument(args.regex, "--regex")
    if "logit_bias" in options:
        options["logit_bias"] = dict(map(_parse_bias, args.logit_bias))
    return options


def check_beam_options(args: argparse.Namespace, *, beam_search: bool) -> None:
    """Raise InvalidArgumentError if an option on the command line contradicts the search method.

    --length-penalty and --early-stopping require `beam_search`: whether --num-beams or the model's
    default selects beam search. --num-beams above 1 excludes --seed, --draft, and filters such as
    --top-k.
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


def _option_name(name: str) -> str:
    return _OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--logit-bias is {text!r}; it must be ID=X, as in 50256=-5"
        ) from error
