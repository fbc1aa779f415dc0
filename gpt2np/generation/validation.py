"""Validation of generation options: ranges, forms and contradictions."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from gpt2np.errors import InvalidArgumentError, short_repr

Predicate = Callable[[Any], bool]


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check all options, name → value, and return the lists among them as tuples.

    Tuples make options hashable. A single stop text becomes a tuple of one.

    Raises:
        InvalidArgumentError: a value is out of its range, or two values contradict each other.
    """
    for name, (is_valid, expected) in _RANGES.items():
        _require(is_valid(options[name]), name, options[name], expected)
    stop_regex = _texts("stop_regex", options["stop_regex"])
    normalized = {
        "stop": _texts("stop", options["stop"]),
        "stop_regex": stop_regex,
        "choices": _choices(options["choices"]),
        "bad_words": _text_list("bad_words", options["bad_words"]),
        "bad_words_ids": _id_lists(options["bad_words_ids"]),
        "stop_token_ids": _ids(options["stop_token_ids"]),
        "logit_bias": _logit_bias(options["logit_bias"]),
    }
    if stop_regex:
        from gpt2np.generation.stopping import compile_stop_regex

        for pattern in stop_regex:
            compile_stop_regex(pattern)
    for is_contradiction, message in _CONTRADICTIONS:
        if is_contradiction(options):
            raise InvalidArgumentError(message.format(**options))
    return normalized


def _is_integer(value: Any) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number. NaN and integers beyond a float are not."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and bool(abs(value) < 1e300)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_id(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_json_key(value: Any) -> bool:
    """Whether a value is an id as a string, the only form of a key in JSON."""
    return isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20


def _integer(at_least: int, at_most: float = math.inf) -> Predicate:
    return lambda value: _is_integer(value) and at_least <= value <= at_most


def _number(low: float, high: float) -> Predicate:
    return lambda value: _is_number(value) and low <= value <= high


def _is_probability(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _or_none(is_valid: Predicate) -> Predicate:
    return lambda value: value is None or is_valid(value)


_RANGES: dict[str, tuple[Predicate, str]] = {
    "temperature": (_number(0, 1e300), "0 (greedy) or above, and finite"),
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
    "ignore_eos": (_is_bool, "True or False"),
    "window": (_integer(0), "an integer, at least 1, or 0 to end when the context is full"),
    "num_beams": (_integer(1, 64), "an integer from 1 to 64"),
    "length_penalty": (_number(-100, 100), "from -100 to 100"),
    "early_stopping": (lambda value: _is_bool(value) or value == "never", "True, False or 'never'"),
    "prompt_lookup": (_is_bool, "True or False"),
    "regex": (_or_none(lambda value: isinstance(value, str) and value != ""), "a non-empty text"),
    "num_return_sequences": (_integer(1, 1000), "an integer from 1 to 1000"),
    "best_of": (_or_none(_integer(1, 1000)), "an integer from 1 to 1000"),
    "logprobs": (_or_none(_integer(0, 1000)), "an integer from 0 to 1000"),
    "prompt_logprobs": (_or_none(_integer(0, 1000)), "an integer from 0 to 1000"),
}


def _require(is_valid: bool, name: str, value: object, expected: str) -> None:
    if not is_valid:
        raise InvalidArgumentError(f"{name} is {short_repr(value)}; it must be {expected}")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    is_valid = _is_list(texts) and all(isinstance(text, str) and text for text in texts)
    _require(is_valid, name, value, "a non-empty text or a list of them")
    return tuple(texts)


def _text_list(name: str, value: Any) -> tuple[str, ...]:
    is_valid = _is_list(value) and all(isinstance(text, str) and text for text in value)
    _require(is_valid, name, value, "a list of non-empty texts")
    return tuple(value)


def _choices(value: Any) -> tuple[str, ...]:
    if value == []:  # () is the default
        raise InvalidArgumentError("choices is an empty list; give at least one text")
    return _text_list("choices", value)


def _ids(value: Any) -> tuple[int, ...]:
    is_valid = _is_list(value) and all(map(_is_id, value))
    _require(is_valid, "stop_token_ids", value, "a list of ids, integers from 0")
    return tuple(map(int, value))


def _id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    is_valid = _is_list(value) and all(
        _is_list(word) and word and all(map(_is_id, word)) for word in value
    )
    _require(
        is_valid, "bad_words_ids", value, "a list of non-empty lists of ids, as in [[5], [6, 7]]"
    )
    return tuple(tuple(map(int, word)) for word in value)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    is_valid = isinstance(pairs, tuple) and all(
        _is_list(pair)
        and len(pair) == 2
        and (_is_id(pair[0]) or _is_json_key(pair[0]))
        and _is_number(pair[1])
        and abs(pair[1]) <= 10_000
        for pair in pairs
    )
    expected = 'ids with numbers from -10000 to 10000, as in {7: -5}, in JSON {"7": -5}'
    _require(is_valid, "logit_bias", value, expected)
    return tuple((int(i), float(b)) for i, b in pairs)


# The command line replaces the names of options in these messages: see cli.generation_options.
_CONTRADICTIONS: tuple[tuple[Predicate, str], ...] = (
    (
        lambda o: o["num_beams"] > 1 and o["temperature"] > 0,
        "num_beams is {num_beams} and temperature {temperature}: beam search does not sample; set "
        "temperature to 0, or num_beams to 1",
    ),
    (
        lambda o: o["num_beams"] > 1 and o["best_of"] is not None,
        "num_beams is {num_beams} and best_of {best_of}: beam search does not sample; omit one of "
        "them",
    ),
    (
        lambda o: 1 < o["num_beams"] < o["num_return_sequences"],
        "num_return_sequences is {num_return_sequences} and num_beams {num_beams}: there are no "
        "more continuations than beams",
    ),
    (
        lambda o: o["num_beams"] > 1 and (o["window"] or o["prompt_lookup"]),
        "num_beams is {num_beams}: beam search supports neither window nor prompt_lookup; omit "
        "them, or set num_beams to 1",
    ),
    (
        lambda o: o["num_beams"] == 1 and o["temperature"] == 0 and (o["best_of"] or 1) > 1,
        "best_of is {best_of} and temperature 0: greedy continuations are all the same; set a "
        "temperature above 0, or num_beams",
    ),
    (
        lambda o: (
            o["num_beams"] == 1
            and o["temperature"] == 0
            and not o["best_of"]
            and o["num_return_sequences"] > 1
        ),
        "num_return_sequences is {num_return_sequences} and temperature 0: greedy continuations "
        "are all the same; set a temperature above 0, or num_beams",
    ),
    (
        lambda o: o["best_of"] is not None and o["best_of"] < o["num_return_sequences"],
        "best_of is {best_of}, less than num_return_sequences, {num_return_sequences}",
    ),
    (
        lambda o: o["min_new_tokens"] > o["max_new_tokens"],
        "min_new_tokens is {min_new_tokens}, more than max_new_tokens, {max_new_tokens}",
    ),
    (
        lambda o: o["choices"] and o["regex"] is not None,
        "choices and regex contradict each other; give one of them",
    ),
)
