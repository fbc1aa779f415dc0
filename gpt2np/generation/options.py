"""Generation options, and checks of their values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypedDict

from gpt2np.errors import InvalidArgumentError, check_argument, did_you_mean, is_integer
from gpt2np.limits import limits, variable

EarlyStopping = bool | Literal["never"]
Draft = Literal["auto", "none"]
Predicate = Callable[[Any], bool]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`; see `GenerationOptions`.

    `stop_strings` and `do_sample` mean the same as in `transformers`.
    """

    stop_strings: str | Sequence[str]
    do_sample: bool

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
    stop_regex: str | Sequence[str]
    window: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    draft: Draft
    choices: Sequence[str]
    regex: str | None
    num_return_sequences: int
    best_of: int | None
    logprobs: int | None
    prompt_logprobs: int | None


_OTHER_ARGUMENTS = (  # of `generate`
    *("stop_strings", "do_sample", "logits_processor", "stopping_criteria", "on_token"),
    *("interventions", "constraint", "prefix"),
)


def option_fields(options: Options) -> dict[str, Any]:
    """Convert the keyword arguments of `generate` to those of `GenerationOptions`.

    `stop_strings` becomes `stop`, and `do_sample=False` becomes `temperature=0.0`.

    Raises:
        InvalidArgumentError: an alias contradicts another option, or a value is an array.
        TypeError: an option does not exist.
    """
    given: dict[str, Any] = dict(options)
    _check_no_arrays(given)
    if "stop_strings" in given:
        if "stop" in given:
            raise InvalidArgumentError(
                "{stop} and {stop_strings} mean the same; give one",
                stop=given["stop"],
                stop_strings=given["stop_strings"],
            )
        given["stop"] = given.pop("stop_strings")
    if (do_sample := given.pop("do_sample", None)) is not None:
        check_argument(_is_bool(do_sample), "do_sample", do_sample, "True or False")
        temperature = given.get("temperature")
        if temperature is not None and bool(temperature) != do_sample:
            raise InvalidArgumentError(
                "{do_sample} is {do_sample.value} and {temperature} {temperature.value}: "
                "{temperature} 0 is greedy, and above 0 samples; give one",
                do_sample=do_sample,
                temperature=temperature,
            )
        if not do_sample:
            given["temperature"] = 0.0
    names = list(GenerationOptions.__dataclass_fields__)
    if unknown := sorted(set(given) - set(names)):
        name = unknown[0]
        if name == "max_length":
            raise TypeError("max_length counts the prompt's tokens, too; give max_new_tokens")
        hint = did_you_mean(name, [*names, *_OTHER_ARGUMENTS])
        raise TypeError(f"there is no option {name!r}{hint or '; there are ' + ', '.join(names)}")
    return given


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of a generation: how to continue a prompt.

    Immutable, so threads can share them.

    Attributes:
      Sampling:
        temperature: divides the logits; 0 selects the most likely token (greedy).
        top_k: sample from the k most likely tokens; 0 for all.
        top_p: sample from the smallest set of most likely tokens with this total probability,
            0 < p ≤ 1.
        min_p: sample from the tokens that are at least min_p times as likely as the most likely
            token, 0 … 1.
        typical_p: sample from the tokens whose surprisal is nearest to the entropy, up to this
            total probability, 0 < p ≤ 1 (Meister et al. 2022).
        seed: seed of the random numbers; None for an unpredictable seed.

      Penalties:
        repetition_penalty: divides positive and multiplies negative logits of the tokens in prompt
            and continuation, 0.001 … 1000 (Keskar et al. 2019).
        presence_penalty: subtracted from the logits of generated tokens, -2 … 2.
        frequency_penalty: subtracted from the logits of generated tokens once per occurrence,
            -2 … 2. Presence and frequency penalty are those of OpenAI's API.
        no_repeat_ngram_size: forbid repeated n-grams of this size in prompt and continuation; 0
            allows them.
        logit_bias: maps token ids to numbers to add to the logits, -10,000 … 10,000, as in
            {50256: -5.0}. Ids may be strings, like the keys of a JSON object.
        bad_words: texts whose token sequence, with or without a leading space, is never generated.
        bad_words_ids: sequences of token ids that are never generated.

      Stopping:
        max_new_tokens: maximum number of new tokens, at least 1.
        min_new_tokens: forbid the end-of-text token before this many new tokens.
        max_time: end after this many seconds, counted from the call, with the text so far; None for
            no limit. The decode step in progress is completed.
        ignore_eos: never generate the end-of-text token.
        stop: one or more texts that end the generation; the result's text ends before the match.
        stop_token_ids: ids that end the generation; the result's text excludes them.
        stop_regex: one or more regular expressions whose match ends the generation; the result's
            text ends before the match. A match that further text may undo, as with `cat\\b` or
            `foo(?!bar)`, counts as soon as it can't be undone.
        window: when the context is full, continue from the last `window` tokens; 0 ends the
            generation.

      Search:
        num_beams: number of beams, at most 64; 1 for no beam search.
        length_penalty: a beam's score is its log probability divided by its length to this power.
        early_stopping: when beam search stops after `num_beams` continuations have ended. True: at
            once. False: when no running beam has a higher score than the worst ended continuation.
            "never": when no running beam can still reach a higher score.
        draft: "auto" uses the draft tokens of `LanguageModel.draft`; "none" switches speculative
            decoding off. The result is the same.

      Constraints:
        choices: the continuation is one of these texts.
        regex: the whole continuation matches this regular expression; a leading `^` and a
            trailing `$` are allowed. See `gpt2np.constraints.syntax`.

      Output:
        num_return_sequences: number of continuations, at most 1000; continuation j, from 0, has the
            seed `seed + j`.
        best_of: sample this many continuations, at most 1000; return the `num_return_sequences`
            with the highest mean log probability.
        logprobs: return the log probabilities of each generated token and of the `logprobs` most
            likely tokens at each position, 0 … 1000; None for no log probabilities.
        prompt_logprobs: like `logprobs`, for the prompt's tokens.

    Log probabilities come from the unprocessed logits, before penalties, filters and temperature.

    Raises:
        InvalidArgumentError: a value is out of its range, or two values contradict each other.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    max_time: float | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    window: int = 0

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    draft: Draft = "auto"

    choices: tuple[str, ...] = ()
    regex: str | None = None

    num_return_sequences: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, value in _normalize(vars(self)).items():
            object.__setattr__(self, name, value)

    @property
    def n_drawn(self) -> int:
        """Number of continuations generated for each prompt."""
        return self.best_of or self.num_return_sequences


def _normalize(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check all options. Returns list options as hashable tuples."""
    _check_no_arrays(options)
    for name, (is_valid, expected) in _RANGES.items():
        check_argument(is_valid(options[name]), name, options[name], expected)
    if isinstance(options["choices"], list) and not options["choices"]:  # () is the default
        raise InvalidArgumentError("{choices} is an empty list; give at least one text", choices=[])
    normalized: dict[str, Any] = {
        **{name: _texts(name, options[name]) for name in _TEXT_OPTIONS},
        "bad_words_ids": _id_lists(options["bad_words_ids"]),
        "stop_token_ids": _ids(options["stop_token_ids"]),
        "logit_bias": _logit_bias(options["logit_bias"]),
    }
    if normalized["stop_regex"]:
        from gpt2np.data.untrusted_regex import check_sizes
        from gpt2np.generation.stop_regex import compile_stop_regex

        check_sizes(normalized["stop_regex"], "stop_regex")
        for pattern in normalized["stop_regex"]:
            compile_stop_regex(pattern)
    for is_contradiction, names, message in _CONTRADICTIONS:
        if is_contradiction(options):
            raise InvalidArgumentError(message, **{name: options[name] for name in names})
    return normalized


def _check_no_arrays(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for an array, which has no truth value and no single equality."""
    for name, value in options.items():
        check_argument(not getattr(value, "ndim", 0), name, value, "a Python value, not an array")


def _is_number(value: Any) -> bool:
    """Whether a value is a real number, not a bool, with an absolute value below 1e300."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    if not isinstance(value, Integral):
        value = float(value)  # NumPy's float32 cannot be compared with 1e300
    return bool(abs(value) < 1e300)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_id(value: Any) -> bool:
    return is_integer(value) and value >= 0


def _integer(at_least: int, at_most: float = math.inf) -> Predicate:
    return lambda value: is_integer(value) and at_least <= value <= at_most


def _number(low: float, high: float) -> Predicate:
    return lambda value: _is_number(value) and low <= value <= high


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_probability(value: Any) -> bool:
    return _is_positive(value) and value <= 1


def _or_none(is_valid: Predicate) -> Predicate:
    return lambda value: value is None or is_valid(value)


_RANGES: dict[str, tuple[Predicate, str]] = {
    "temperature": (_number(0, math.inf), "0 (greedy) or above, and finite"),
    "top_k": (_integer(0), "an integer, at least 1, or 0 for no limit"),
    "top_p": (_is_probability, "above 0 and at most 1"),
    "min_p": (_number(0, 1), "from 0 to 1"),
    "typical_p": (_is_probability, "above 0 and at most 1"),
    "seed": (_or_none(_integer(0)), "an integer, at least 0"),
    "repetition_penalty": (_number(0.001, 1000), "from 0.001 to 1000; 1 for none"),
    "presence_penalty": (_number(-2, 2), "from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "from -2 to 2"),
    "no_repeat_ngram_size": (_integer(0), "an integer, at least 1, or 0 for none"),
    "max_new_tokens": (_integer(1), "an integer, at least 1"),
    "min_new_tokens": (_integer(0), "an integer, at least 0"),
    "max_time": (_or_none(_is_positive), "a number of seconds above 0, or None"),
    "ignore_eos": (_is_bool, "True or False"),
    "window": (_integer(0), "an integer, at least 1, or 0 to end when the context is full"),
    "num_beams": (_integer(1, 64), "an integer from 1 to 64"),
    "length_penalty": (_number(-100, 100), "from -100 to 100"),
    "early_stopping": (lambda value: _is_bool(value) or value == "never", "True, False or 'never'"),
    "draft": (lambda value: value in ("auto", "none"), "'auto' or 'none'"),
    "regex": (_or_none(lambda value: isinstance(value, str) and value != ""), "a non-empty text"),
    "num_return_sequences": (_integer(1, 1000), "an integer from 1 to 1000"),
    "best_of": (_or_none(_integer(1, 1000)), "an integer from 1 to 1000"),
    "logprobs": (_or_none(_integer(0, 1000)), "an integer from 0 to 1000"),
    "prompt_logprobs": (_or_none(_integer(0, 1000)), "an integer from 0 to 1000"),
}


# Options that are lists of texts, with the description of a valid value.
_TEXT_OPTIONS = {
    "stop": "a non-empty text or a list of them",
    "stop_regex": "a non-empty text or a list of them",
    "choices": "a list of non-empty texts",
    "bad_words": "a list of non-empty texts",
}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Check a list of texts. Returns a tuple; a stop option may also be a single text."""
    is_single = isinstance(value, str) and name.startswith("stop")
    texts = (value,) if is_single else value
    if name == "choices" and _is_list(texts):
        _check_choices(texts)
    is_valid = _is_list(texts) and all(isinstance(text, str) and text for text in texts)
    check_argument(is_valid, name, value, _TEXT_OPTIONS[name])
    return tuple(texts)


def _check_choices(texts: Sequence[Any]) -> None:
    """Refuse too many or too long choices before they take memory."""
    limit = limits().max_choices_characters
    if len(texts) > limit or sum(len(text) for text in texts if isinstance(text, str)) > limit:
        raise InvalidArgumentError(
            f"{{choices}} have more than {limit:,} characters; give fewer or shorter texts, or set "
            f"{variable('max_choices_characters')}",
            choices=texts,
        )


def _ids(value: Any) -> tuple[int, ...]:
    is_valid = _is_list(value) and all(map(_is_id, value))
    check_argument(is_valid, "stop_token_ids", value, "a list of ids, integers from 0")
    return tuple(map(int, value))


def _id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    is_valid = _is_list(value) and all(
        _is_list(word) and word and all(map(_is_id, word)) for word in value
    )
    expected = "a list of non-empty lists of ids, as in [[5], [6, 7]]"
    check_argument(is_valid, "bad_words_ids", value, expected)
    return tuple(tuple(map(int, word)) for word in value)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Check a logit bias. Returns (token id, bias) pairs; ids may be strings, like keys in JSON."""

    def is_key(key: Any) -> bool:
        is_digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
        return is_digits or _is_id(key)

    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    is_valid = isinstance(pairs, tuple) and all(
        _is_list(pair)
        and len(pair) == 2
        and is_key(pair[0])
        and _is_number(pair[1])
        and abs(pair[1]) <= 10_000
        for pair in pairs
    )
    expected = 'ids with numbers from -10000 to 10000, as in {7: -5}, in JSON {"7": -5}'
    check_argument(is_valid, "logit_bias", value, expected)
    return tuple((int(i), float(b)) for i, b in pairs)


_CONTRADICTIONS: tuple[tuple[Predicate, tuple[str, ...], str], ...] = (
    (
        lambda o: o["num_beams"] > 1 and o["temperature"] > 0,
        ("num_beams", "temperature"),
        "{num_beams} is {num_beams.value} and {temperature} {temperature.value}: beam search does "
        "not sample; set {temperature} to 0, or {num_beams} to 1",
    ),
    (
        lambda o: o["num_beams"] > 1 and o["best_of"] is not None,
        ("num_beams", "best_of"),
        "{num_beams} is {num_beams.value} and {best_of} {best_of.value}: beam search does not "
        "sample; omit one of them",
    ),
    (
        lambda o: 1 < o["num_beams"] < o["num_return_sequences"],
        ("num_return_sequences", "num_beams"),
        "{num_return_sequences} is {num_return_sequences.value} and {num_beams} "
        "{num_beams.value}: there are no more continuations than beams",
    ),
    (
        lambda o: o["num_beams"] > 1 and o["window"],
        ("num_beams", "window"),
        "{num_beams} is {num_beams.value}: beam search does not support {window}; omit it, or set "
        "{num_beams} to 1",
    ),
    (
        lambda o: o["num_beams"] == 1 and o["temperature"] == 0 and (o["best_of"] or 1) > 1,
        ("best_of", "temperature", "num_beams"),
        "{best_of} is {best_of.value} and {temperature} 0: greedy continuations are all the same; "
        "set {temperature} above 0, or {num_beams}",
    ),
    (
        lambda o: (
            o["num_beams"] == 1
            and o["temperature"] == 0
            and not o["best_of"]
            and o["num_return_sequences"] > 1
        ),
        ("num_return_sequences", "temperature", "num_beams"),
        "{num_return_sequences} is {num_return_sequences.value} and {temperature} 0: greedy "
        "continuations are all the same; set {temperature} above 0, or {num_beams}",
    ),
    (
        lambda o: o["best_of"] is not None and o["best_of"] < o["num_return_sequences"],
        ("best_of", "num_return_sequences"),
        "{best_of} is {best_of.value}, less than {num_return_sequences}, "
        "{num_return_sequences.value}",
    ),
    (
        lambda o: o["min_new_tokens"] > o["max_new_tokens"],
        ("min_new_tokens", "max_new_tokens"),
        "{min_new_tokens} is {min_new_tokens.value}, more than {max_new_tokens}, "
        "{max_new_tokens.value}",
    ),
    (
        lambda o: o["choices"] and o["regex"] is not None,
        ("choices", "regex"),
        "{choices} and {regex}: the two contradict each other; give one",
    ),
)
"""Condition, the options that contradict each other, and the message."""
