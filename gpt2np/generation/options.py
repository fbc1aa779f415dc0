"""Generation options: their declarations, and checks of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

from gpt2np.errors import InvalidArgumentError, did_you_mean, is_integer, short_repr
from gpt2np.limits import limits
from gpt2np.options import (
    attributes_text,
    check_no_array,
    check_options,
    is_number,
    option,
    options_of,
)

EarlyStopping = bool | Literal["never"]
Draft = Literal["auto", "none"]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`; see `GenerationOptions`."""

    token_healing: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]
    bad_words_ids: Sequence[Sequence[int]]
    max_new_tokens: int
    min_new_tokens: int
    max_time: float | None
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    draft: Draft
    choices: Sequence[str]
    regex: str | None
    json_schema: Mapping[str, Any] | str | PathLike[str] | None
    num_return_sequences: int
    logprobs: int | None
    prompt_logprobs: int | None


_MAX_BIAS = 10_000
_MAX_CHOICES_CHARACTERS = 50_000
_MAX_SCHEMA_CHARACTERS = 100_000
_BIAS_NOUN = 'token ids, each once, with a number from -10000 to 10000, as in {7: -5} or {"7": -5}'
_ONE_OR_MORE = "a non-empty text or a list of them"


def option_fields(options: Options) -> dict[str, Any]:
    """Return keyword arguments of `generate` as arguments of `GenerationOptions`.

    Raises:
        InvalidArgumentError: a value is an array.
        TypeError: an option does not exist.
    """
    given: dict[str, Any] = dict(options)
    for name, value in given.items():
        check_no_array(name, value)
    names = list(options_of(GenerationOptions))
    if unknown := sorted(set(given) - set(names)):
        hint = did_you_mean(unknown[0], names) or f"; there are {', '.join(names)}"
        raise TypeError(f"there is no option {unknown[0]!r}{hint}")
    return given


def _biases(value: Any) -> Any:
    """Convert {7: -5}, or {"7": -5} out of JSON, to ((7, -5.0),); the pairs stay as they are."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, tuple):
        raise ValueError(value)
    biases = {_token_id(key): float(bias) for key, bias in pairs if is_number(bias)}
    if len(biases) < len(pairs) or max(map(abs, biases.values()), default=0) > _MAX_BIAS:
        raise ValueError("an id is given twice, or a bias is out of range")
    return tuple(biases.items())


def _token_id(key: Any) -> int:
    is_digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
    if not is_digits and not (is_integer(key) and key >= 0):
        raise ValueError(key)
    return int(key)


def _texts(value: Any) -> Any:
    """Convert a text to a list of it."""
    return (value,) if isinstance(value, str) else value


def _choices(value: Any) -> Any:
    """Refuse an empty list, which would allow no text, and lists that take much memory."""
    if value == [] or len(value) + sum(map(len, value)) > _MAX_CHOICES_CHARACTERS:
        raise ValueError(value)
    return value


def _json_schema(value: Any) -> str:
    """Convert a JSON Schema to JSON text: a dict, JSON text, or the path of a file."""
    import json

    from gpt2np.data.files import as_path, read_json_object

    if value == "" or not isinstance(value, (str, Mapping, PathLike)):
        raise ValueError(value)
    try:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)
        elif not isinstance(value, Mapping):
            path, most = as_path(fspath(value)), limits().max_config_bytes
            value = read_json_object(path, InvalidArgumentError, max_bytes=most)
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        text.encode()  # refuses lone surrogates
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"json_schema is not JSON: {error}", param="json_schema"
        ) from error
    if len(text) > _MAX_SCHEMA_CHARACTERS:
        raise InvalidArgumentError(
            f"json_schema has {len(text):,} characters, more than {_MAX_SCHEMA_CHARACTERS:,}",
            param="json_schema",
        )
    return text


_sampling = partial(option, group="Sampling")
_beam_search = partial(option, group="Beam search")
_penalty = partial(option, group="Penalties")
_stopping = partial(option, group="Stopping")
_constraint = partial(option, group="Constraints")
_output = partial(option, group="Output")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options that say how to continue a prompt.

    Immutable, so threads can share them. Log probabilities come from the unprocessed logits, before
    penalties, filters and temperature.

    Raises:
        InvalidArgumentError: a value is out of its range, or two values contradict each other.
    """

    token_healing: bool = option(
        False,
        "Let the model replace the prompt's last tokens with a longer token that begins with the "
        "same characters",
        details="This helps if a prompt ends in a space or within a word. See "
        "`gpt2np.generation.token_healing`.",
        group="Prompt",
    )

    temperature: float = _sampling(0.8, "Temperature; 0 selects the most likely token", low=0)
    top_k: int = _sampling(40, "Sample only from the N most likely tokens; 0 for all tokens", low=0)
    top_p: float = _sampling(
        1.0, "Sample from the most likely tokens with a total probability of X", above=0, high=1
    )
    min_p: float = _sampling(
        0.0, "Exclude tokens with less than X times the highest probability", low=0, high=1
    )
    typical_p: float = _sampling(
        1.0,
        "Typical sampling: keep the tokens nearest the expected likelihood, with a total "
        "probability of X",
        details="This excludes unlikely tokens, and sometimes very likely ones (locally typical "
        "sampling, Meister et al. 2022).",
        above=0,
        high=1,
    )
    seed: int | None = _sampling(
        None,
        "Random seed; on one machine, the same seed and options give the same text",
        default_text="random",
        low=0,
    )

    num_beams: int = _beam_search(
        1,
        "Use beam search with N beams instead of sampling; 1 for no beam search",
        json_name="use_beam_search",
        low=1,
        high=64,
    )
    length_penalty: float = _beam_search(
        1.0,
        "Divide a beam's log probability by (number of tokens)^X; a higher X favors longer texts",
        low=-100,
        high=100,
    )
    early_stopping: EarlyStopping = _beam_search(
        False,
        "Once `num_beams` texts are complete: 'true' stops; 'false' goes on while a better text is "
        "likely; 'never', while one is possible",
    )

    repetition_penalty: float = _penalty(
        1.0,
        "Above 1: make the tokens of the prompt and of the generated text less likely",
        details="Positive logits are divided by X, and negative logits are multiplied by X "
        "(Keskar et al. 2019). 1 has no effect.",
        low=0.001,
        high=1000,
    )
    presence_penalty: float = _penalty(
        0.0, "Subtract X from the logits of all tokens in the new text", low=-2, high=2
    )
    frequency_penalty: float = _penalty(
        0.0, "Subtract X from a token's logit for each occurrence in the new text", low=-2, high=2
    )
    no_repeat_ngram_size: int = _penalty(
        0,
        "Never repeat a sequence of N tokens from the prompt or the new text; 0 allows repeats",
        low=0,
    )
    logit_bias: tuple[tuple[int, float], ...] = _penalty(
        (),
        "Add X to the logit of the token with id ID",
        convert=_biases,
        noun=_BIAS_NOUN,
        metavar="ID=X",
    )
    bad_words: tuple[str, ...] = _penalty(
        (),
        "Never generate TEXT, with or without a space before it",
        details="A longer word that contains TEXT can still appear, if its tokens differ.",
        flags=("--bad-word",),
    )
    bad_words_ids: tuple[tuple[int, ...], ...] = _penalty(
        (),
        "Never generate these sequences of token ids",
        low=0,
        noun="a list of non-empty lists of token ids, as in [[5], [6, 7]]",
    )

    max_new_tokens: int = _stopping(
        200,
        "Maximum number of tokens to generate",
        flags=("-n", "--max-new-tokens"),
        json_name="max_tokens",
        low=1,
    )
    min_new_tokens: int = _stopping(
        0,
        "Generate at least N tokens, unless a constraint ends the text earlier; until then, "
        "exclude stop tokens and ignore stop strings",
        details="Stop tokens are the end-of-text token and stop ids. Other limits still count.",
        json_name="min_tokens",
        low=0,
    )
    max_time: float | None = _stopping(
        None,
        "Stop after X seconds and return the text so far",
        details="The time is measured from the start of the call, and checked after each step.",
        default_text="no limit",
        above=0,
    )
    ignore_eos: bool = _stopping(
        False,
        "Never generate the end-of-text token (EOS)",
        details="The text ends at a stop string, at `max_new_tokens` or at another limit.",
    )
    stop: tuple[str, ...] = _stopping(
        (),
        "End the output before TEXT; in a shell, write a newline as $'\\n'",
        convert=_texts,
        noun=_ONE_OR_MORE,
    )
    stop_token_ids: tuple[int, ...] = _stopping(
        (),
        "End the output before the token with id ID",
        flags=("--stop-id", "--stop-token-id"),
        low=0,
        noun="a list of token ids",
        metavar="ID",
    )

    choices: tuple[str, ...] = _constraint(
        (),
        "Generate exactly one of the given texts; begin a new word with a space, as in ' yes'",
        flags=("--choice",),
        json_name="structured_outputs.choice",
        convert=_choices,
        noun=f"one or more non-empty texts of at most {_MAX_CHOICES_CHARACTERS:,} characters",
    )
    regex: str | None = _constraint(
        None,
        "Generate a text that fully matches this regular expression",
        details="Look-around and back-references are not supported, and anchors are allowed only "
        "at the start and the end of the pattern. See `gpt2np.constraints.syntax`.",
        metavar="PATTERN",
        json_name="structured_outputs.regex",
    )
    json_schema: str | None = _constraint(
        None,
        "Generate JSON that is valid against this JSON Schema",
        details="See the guide to constraints for the supported keywords.",
        json_name="structured_outputs.json",
        convert=_json_schema,
        noun="a JSON Schema, given as a dict, as JSON text or as the path of a file",
        metavar="FILE",
    )

    num_return_sequences: int = _output(
        1,
        "Number of texts for each prompt, with consecutive seeds",
        details="Beam search returns the N best texts, at most `num_beams`.",
        flags=("--samples", "--num-return-sequences"),
        json_name="n",
        low=1,
        high=1000,
    )
    logprobs: int | None = _output(
        None,
        "Return each generated token's log probability, and the N most likely tokens at its place",
        low=0,
        high=1000,
    )
    prompt_logprobs: int | None = _output(
        None,
        "Return each prompt token's log probability, and the N most likely tokens at its place",
        low=0,
        high=1000,
    )

    draft: Draft = option(
        "auto",
        "'auto' uses speculative decoding if the model has a source of draft tokens",
        details="'none' never uses it. Both values give the same text.",
        group="Performance",
    )

    def __post_init__(self) -> None:
        check_options(self)
        for first, second, is_contradiction, reason in _contradictions(self):
            if is_contradiction:
                names = _with_number(self, first), _with_number(self, second)
                message = f"{' and '.join(names)} contradict each other: {reason}"
                raise InvalidArgumentError(message, param=first)

    def with_seed(self, seed: int) -> GenerationOptions:
        """Return the options with another seed. Long lists are not checked again."""
        options = copy(self)
        object.__setattr__(options, "seed", seed)
        return options


GenerationOptions.__doc__ = f"{GenerationOptions.__doc__}\n{attributes_text(GenerationOptions)}"

ONE_TEXT_ONLY = ("Prompt", "Beam search", "Output")
"""Groups of options that a conversation, which is one text, does not have."""

TEXT_CONSTRAINTS = ("choices", "regex", "json_schema")
"""Options of which at most one is given: what the text must be."""


def _with_number(options: GenerationOptions, name: str) -> str:
    """Return an option for a message: `num_beams=3`, or `regex` if its value is not a number."""
    value = getattr(options, name)
    return f"`{name}={value}`" if is_number(value) else f"`{name}`"


def _contradictions(o: GenerationOptions) -> Iterator[tuple[str, str, object, str]]:
    """Yield two options, whether they contradict each other, and the reason."""
    is_greedy, has_beams, n = o.temperature == 0, o.num_beams > 1, o.num_return_sequences
    no_samples, equal = "beam search does not sample", "greedy continuations are all the same"
    yield "num_beams", "temperature", has_beams and not is_greedy, no_samples
    scores_prompt = has_beams and o.prompt_logprobs is not None
    yield "prompt_logprobs", "num_beams", scores_prompt, "beam search does not score the prompt"
    too_many = "there are no more continuations than beams"
    yield "num_return_sequences", "num_beams", has_beams and n > o.num_beams, too_many
    are_equal = is_greedy and n > o.num_beams
    yield "num_return_sequences", "temperature", are_equal, equal
    are_swapped = o.min_new_tokens > o.max_new_tokens
    yield "min_new_tokens", "max_new_tokens", are_swapped, "the minimum is above the maximum"
    for first, second in combinations(("token_healing", *TEXT_CONSTRAINTS), 2):
        yield first, second, getattr(o, first) and getattr(o, second), "give one"


FILTERS: dict[str, float] = {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1}
"""Option of each filter → the value that switches it off; in the order in which they run."""

_OF_BEAM_SEARCH: dict[str, float] = {"length_penalty": 1, "early_stopping": False}
NEUTRAL = FILTERS | _OF_BEAM_SEARCH
"""Options of one search method, with the value that changes nothing."""


def check_effect(given: Mapping[str, Any], resolved: GenerationOptions) -> None:
    """Raise InvalidArgumentError if a given option belongs to another search method.

    Defaults, such as those of a generation_config.json, contradict nothing.
    """
    unused: dict[str, str] = {}
    if "temperature" in given and not resolved.temperature:
        n_beams = resolved.num_beams
        cause = f"num_beams={n_beams}" if n_beams > 1 else "temperature=0"
        unused |= dict.fromkeys(FILTERS, f"with `{cause}`; omit one")
    if resolved.num_beams == 1:
        unused |= dict.fromkeys(_OF_BEAM_SEARCH, "without beam search; set `num_beams` above 1")
    for name, reason in unused.items():
        if (value := given.get(name, NEUTRAL[name])) != NEUTRAL[name]:
            message = f"{name} is {short_repr(value)}, which has no effect {reason}"
            raise InvalidArgumentError(message, param=name)
