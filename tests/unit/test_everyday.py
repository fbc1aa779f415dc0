"""What people try first: arrays and Series, other names, another device."""

import re

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.paths import CHECKOUT

import gpt2np


class Series:
    """What gpt2np needs of a Series of pandas or polars."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype or object)


@pytest.mark.parametrize("kind", [list, tuple, np.array, Series])
def test_arrays_and_series_of_texts_and_ids(lm, kind):
    texts, ids = ["The fox", "A king ran"], [5, 6, 7]
    for found, text in zip(lm.score(kind(texts)), texts, strict=True):
        assert found.total == pytest.approx(lm.score(text).total, rel=1e-5)
    assert lm.score(kind(ids)).total == lm.score(ids).total
    assert lm.score(" ran", given=kind(ids)).total == lm.score(" ran", given=ids).total
    assert len(lm.score(kind([kind(ids)] if kind is list else [ids]))) == 1
    options = {"max_new_tokens": 2, "seed": 1}
    assert lm.generate(kind(ids), **options) == lm.generate(ids, **options)
    assert np.array_equal(gpt2np.trace(lm, kind(ids), "embed").ids, ids)


def test_a_prompt_that_ends_in_a_space(lm):
    assert lm.generate("Once upon a", max_new_tokens=1).notice is None
    assert "ends in a space" in lm.generate("Once upon a ", max_new_tokens=1).notice
    result = run_here("generate", "Once upon a ", "--model", "bundled", "-n", "1")
    assert result.stderr.count("the prompt ends in a space") == 1
    arguments = ("generate", "Once upon a ", "--model", "bundled", "--choice", " time")
    assert "and begin the constraint with it\n" in run_here(*arguments).stderr
    result = run_here("generate", "Once upon a", "--model", "bundled", "-n", "1")
    assert "space" not in result.stderr


def test_str_of_a_completion_is_its_text(lm):
    completion = lm.generate("Once upon a time", max_new_tokens=5, seed=1)
    assert str(completion) == completion.text != ""
    assert repr(completion).startswith("Completion(prompt='Once upon a time'")


def test_the_signature_of_load_in_the_documentation():
    import inspect

    page = (CHECKOUT / "docs/reference/api/gpt2np.md").read_text(encoding="utf-8")
    [signature] = re.findall(r"function:: load\((.*)\)", page)
    assert re.findall(r"(\w+)=", signature) == [
        name for name in inspect.signature(gpt2np.load).parameters if name != "unknown"
    ]
