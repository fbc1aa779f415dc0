"""Every value out of its range and every contradiction is an error of one line."""

import dataclasses
import inspect
import json
import math

import pytest

from gpt2np import GenerationOptions, InvalidArgumentError
from gpt2np.generation.options import Options

NUMBERS = ("x", None, True, math.nan, math.inf, 10**400)
WHOLE = ("x", True, 1.5, -1, math.nan)

WRONG = {
    "token_healing": (None, 1, "yes"),
    "max_new_tokens": (*WHOLE, None, 0),
    "temperature": (*NUMBERS, -0.1),
    "top_k": (*WHOLE, None),
    "top_p": (*NUMBERS, 0, -1, 1.01),
    "min_p": (*NUMBERS, -0.01, 1.01),
    "typical_p": (*NUMBERS, 0, 1.01),
    "repetition_penalty": (*NUMBERS, 0, -1, 1001),
    "presence_penalty": (*NUMBERS, -2.1, 2.1),
    "frequency_penalty": (*NUMBERS, -2.1, 2.1),
    "no_repeat_ngram_size": (*WHOLE, None),
    "logit_bias": (
        *("x", None, 5, {"a": 1}, {-1: 1}, {1: "x"}, {1: math.nan}, {1: 10_001}, [(1, 2)]),
        *((5,), ((5,),), {"-1": 1}, {"1.0": 1}, {"": 1}, {"²": 1}, {"9" * 5000: 1}),
    ),
    "bad_words": ("x", None, 5, [""], [[]], [[-1]], [[1.5]], [None], [["a"]], [[5]], [5]),
    "bad_words_ids": ("x", None, 5, [""], [[]], [[-1]], [[1.5]], [None], [["a"]], ["a"], [5]),
    "min_new_tokens": (*WHOLE, None),
    "max_time": ("x", True, math.nan, math.inf, 10**400, 0, -1),
    "ignore_eos": (None, 1, "yes"),
    "seed": WHOLE,
    "num_return_sequences": (*WHOLE, None, 0, 1001, 10**9),
    "num_beams": (*WHOLE, None, 0, 65, 10**6),
    "length_penalty": (*NUMBERS, 101),
    "early_stopping": (None, "always", 2, "True"),
    "stop": (None, 5, "", [""], [5], {"a"}),
    "stop_token_ids": (None, 5, "x", [-1], [1.5], [True]),
    "draft": (None, 1, True, "bundled"),
    "logprobs": (*WHOLE, 1001),
    "prompt_logprobs": (*WHOLE, 1001),
    "choices": ("ab", None, 5, [""], [5]),
    "regex": ("", 5, ["a"]),
    "json_schema": ("", 5, ["a"]),
}


def test_all_options_are_covered():
    names = [field.name for field in dataclasses.fields(GenerationOptions)]
    assert set(WRONG) == set(names) == set(Options.__annotations__)
    documented = inspect.getdoc(GenerationOptions).partition("Attributes:")[2]
    assert all(f"    {name}: " in documented for name in names)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_out_of_range(name, value):
    with pytest.raises(InvalidArgumentError) as caught:
        GenerationOptions(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is ") and "; it must be " in message
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_beams": 3},
            "`num_beams=3` and `temperature=0.8` contradict each other: beam search",
        ),
        (
            {"temperature": 0, "num_return_sequences": 2},
            "`num_return_sequences=2` and `temperature=0` contradict each other: greedy",
        ),
        (
            {"temperature": 0, "num_beams": 2, "num_return_sequences": 3},
            "`num_return_sequences=3` and `num_beams=2`",
        ),
        ({"logit_bias": {7: 5, "7": 5}}, "logit_bias is .*; it must be token ids, each once"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "`min_new_tokens=9` and `max_new_tokens=8`"),
        (
            {"num_beams": 3, "temperature": 0, "prompt_logprobs": 1},
            "`prompt_logprobs=1` and `num_beams=3` contradict each other: beam search does not",
        ),
        ({"choices": ["a"], "regex": "b"}, "`choices` and `regex` contradict each other: give one"),
    ],
)
def test_contradictions(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        GenerationOptions(**options)


def test_what_is_given_in_one_form_or_another():
    options = GenerationOptions(
        stop="a", stop_token_ids=[3], bad_words=["c"], bad_words_ids=[[1, 2]], logit_bias={0: 1}
    )
    assert (options.stop, options.stop_token_ids) == (("a",), (3,))
    assert options.bad_words == ("c",) and options.bad_words_ids == ((1, 2),)
    assert options.logit_bias == ((0, 1.0),)
    assert dataclasses.replace(options, seed=1).logit_bias == options.logit_bias
    hash(options)


def test_logit_bias_out_of_json():
    given = json.loads('{"50256": -5, "7": 1.5}')
    assert GenerationOptions(logit_bias=given).logit_bias == ((50256, -5.0), (7, 1.5))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temperature": 0, "top_k": 5}, "with `temperature=0`; omit one"),
        ({"temperature": 0, "typical_p": 0.9}, "with `temperature=0`; omit one"),
        ({"num_beams": 2, "top_p": 0.5}, "with `num_beams=2`; omit one"),
        ({"length_penalty": 2}, "without beam search"),
        ({"early_stopping": True, "num_beams": 1}, "without beam search"),
    ],
)
def test_option_of_another_search_method_raises(lm, given, reason):
    with pytest.raises(InvalidArgumentError, match=f"which has no effect {reason}") as error:
        lm.generate("a", max_new_tokens=1, **given)
    assert error.value.param in given


def test_option_of_another_search_method_passes_if_neutral_or_a_default(lm):
    defaults = GenerationOptions(top_k=5, length_penalty=2)
    assert lm.generate("a", defaults, max_new_tokens=1, temperature=0).ids
    assert lm.generate("a", max_new_tokens=1, temperature=0, top_p=1, seed=1).ids
