"""Options of right and wrong types and values: a result that repeats, or an error of one line."""

import json
import math

import numpy as np
from helpers.command_line import run_here
from helpers.one_line import assert_one_line
from hypothesis import event, given
from hypothesis import strategies as st

from gpt2np import GPT2NPError
from gpt2np.generation.options import GenerationOptions
from gpt2np.options import options_of

WRONG = (
    None, True, False, -1, 0, 1, 0.5, 1e300, math.inf, math.nan, 10**30, -(2**63), "", "a", "1",
    b"a", [], [[]], [None], [""], ["a", 1], {}, {1: None}, {"a": 1}, {-1: 0}, object, 1j, "\ud800",
    np.int64(3), np.float32(0.5), np.array(2), np.array([1, 2]), range(3), ("a",), {"a"}, "(" * 99,
)  # fmt: skip
RIGHT = {
    "temperature": (0, 0.0, 0.3, 1.0, 100.0, 1e-30),
    "top_k": (0, 1, 5, 10**9),
    "top_p": (0.01, 0.5, 1.0),
    "min_p": (0.0, 0.1, 1.0),
    "typical_p": (0.01, 0.5, 1.0),
    "seed": (0, 1, 2**63, None),
    "repetition_penalty": (0.001, 1.0, 1.3, 1000.0),
    "presence_penalty": (-2.0, 0.0, 1.5, 2),
    "frequency_penalty": (-2.0, 0.0, 1.5, 2),
    "no_repeat_ngram_size": (0, 1, 2, 1000),
    "logit_bias": ({}, {97: 5.0}, {"98": -10_000}, {262: 10_000.0}, {10**9: 1}),
    "bad_words": ([], ["a", "ab"], ["é", " x"], [chr(i) for i in range(1, 128)]),
    "bad_words_ids": ([], [[5], [6, 7]], [[262]], [[999_999]], [[i] for i in range(263)]),
    "max_new_tokens": (1, 2, 12, 70),
    "min_new_tokens": (0, 1, 5),
    "ignore_eos": (False, True),
    "stop": ((), "a", ["a", "ab"]),
    "stop_token_ids": ([], [97, 98], [10**12]),
    "num_beams": (1, 2, 4, 9),
    "length_penalty": (-100, 0.0, 1.0, 2.5),
    "early_stopping": (True, False, "never"),
    "draft": ("auto", "none"),
    "choices": ((), ["yes", "no"], ["a", "aa", "aaa"], ["😀"]),
    "regex": (None, "[a-z]{3}", "(a|aa)*", "a?", "é+"),
    "num_return_sequences": (1, 2, 3),
    "logprobs": (None, 0, 3, 1000),
    "prompt_logprobs": (None, 0, 3),
}
PROMPTS = ("", "a", "é漢😀", "a" * 63, "a" * 200, [97, 98], [], [262], [10**9], [-1], 5, None)


def some_of(values):
    """Return a strategy of dicts with some options; values[name] has the values of an option."""
    return st.lists(st.sampled_from([*values]), max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(values[name]) for name in names})
    )


valid = some_of(RIGHT)
mixed = some_of({name: (*values, *values, *WRONG) for name, values in RIGHT.items()})


@given(options=st.one_of(valid, mixed), prompt=st.sampled_from(PROMPTS))
def test_options(byte_lm, options, prompt):
    options = {"max_new_tokens": 12, "seed": 3, **options}
    try:
        first = byte_lm.generate(prompt, **options)
    except GPT2NPError as error:
        assert_one_line(error)
        return
    event("accepted")
    if options["seed"] is not None:
        assert all_ids(byte_lm.generate(prompt, **options)) == all_ids(first)
        assert all_ids(byte_lm.generate_batch([prompt, "b"], **options)[0]) == all_ids(first)


def all_ids(completion):
    return [one.ids for one in (completion, *completion.alternatives)]


OPTIONS = options_of(GenerationOptions)
FLAGS = {name: OPTIONS[name].flags[-1] for name in RIGHT}
ARGUMENTS = ("", "a", "1", "-1", "0", "0.5", "1e999", "nan", "97=1", "97=x", "true", "\udcff")


def as_arguments(name, value):
    """Return an option and its value as arguments of the command line; None if it has none."""
    if name == "bad_words_ids" or value is None:
        return None
    if name == "ignore_eos":
        return ["--ignore-eos"] if value else []
    if name == "early_stopping":
        return ["--early-stopping", str(value).lower()]
    values = value if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, dict):
        values = [f"{token_id}={bias}" for token_id, bias in value.items()]
    return [f"{FLAGS[name]}={value}" for value in values]


@given(options=valid, prompt=st.sampled_from(PROMPTS[:5]))
def test_command_line(byte_lm, byte_model, options, prompt):
    """The command line and the library accept the same options, and give the same ids."""
    options = {"max_new_tokens": 12, **options, "seed": options.get("seed") or 3}
    given = {name: as_arguments(name, value) for name, value in options.items()}
    arguments = [argument for pair in given.values() for argument in pair or ()]
    code, lines = run_generate(byte_model, [prompt, "--json", "--draft=none", *arguments])
    if code:
        return
    expected = byte_lm.generate(prompt, **{name: options[name] for name in given if given[name]})
    assert [json.loads(line)["ids"] for line in lines] == all_ids(expected)


flags = st.sampled_from(sorted(FLAGS.values()))
words = st.one_of(
    flags,
    st.sampled_from((*ARGUMENTS, "--json", "--greedy", "--no-echo")),
    st.tuples(flags, st.sampled_from(ARGUMENTS)).map("=".join),
)


@given(arguments=st.lists(words, max_size=6))
def test_arguments(byte_model, arguments):
    """Malformed command lines end in one line and an exit code."""
    run_generate(byte_model, ["a", *arguments, "-n", "5"])


def run_generate(model, arguments):
    """Run `gpt2np generate`. Returns the exit code, and the lines on stdout."""
    result = run_here("generate", "--model", model, *arguments, "--processes", "1")
    code, messages = result.returncode, result.stderr.split("\n")
    event(f"exit code {code}")
    last = messages[-2:]
    assert code in (0, 1, 2) and (code == 0 or "error: " in last[0]) and last[-1:] == [""]
    assert all(line.isprintable() for line in messages)
    return code, result.stdout.splitlines()
