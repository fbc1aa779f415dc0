"""Choices and regexes through LanguageModel."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results

from gpt2np import InvalidArgumentError


def test_a_complete_text_stops_and_an_open_one_may_end(lm):
    assert lm.generate("It was", regex=r" \w\w", seed=1).finish_reason == "stop"
    ends = lm.generate("It was", regex=r"(?: a| the)?", seed=1, logit_bias={4095: 100.0})
    assert (ends.text, ends.finish_reason) == ("", "eos")


def test_drafts_and_continuations_change_no_text(lm):
    options = {"regex": r"(?: [a-z]+){3,5}[.!]", "max_new_tokens": 60, "seed": 3}
    alone = lm.generate("The king", **options)
    assert lm.generate("The king", draft="none", **options).ids == alone.ids
    assert lm.generate("The king", num_return_sequences=3, **options).ids == alone.ids


@dataclass(frozen=True)
class Vowels:
    """A constraint of a user: the regular expression [aeiou]{n}."""

    texts: dict[int, str]  # tokens of vowels, by id
    n: int

    @property
    def complete(self):
        return self.n == 0

    def allowed(self):
        mask = np.zeros(4096, bool)
        mask[[i for i, text in self.texts.items() if len(text) <= self.n]] = True
        return mask

    def advance(self, token_id):
        return replace(self, n=self.n - len(self.texts[token_id]))


@pytest.fixture(scope="module")
def vowels(lm):
    table = lm.tokenizer.vocabulary.token_bytes
    texts = {i: table[i].decode("latin-1") for i in range(4096)}
    return Vowels({i: t for i, t in texts.items() if t and set(t) <= set("aeiou")}, 12)


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"seed": 2, "logprobs": 1}, {"seed": 3, "num_beams": 3}]
)
def test_a_constraint_of_a_class_of_ones_own(lm, vowels, options):
    """It gives the ids of the regular expression with the same masks."""
    expected = lm.generate("It was", regex="[aeiou]{12}", **options)
    assert len(expected.text) == 12
    result = lm.generate("It was", constraint=vowels, **options)
    assert result == expected and result.finish_reason == "stop"
    batch = lm.generate_batch(["It was", "The"], constraint=vowels, **options)
    assert_equal_results(batch[0], expected)
    if "num_beams" not in options:
        assert asyncio.run(lm.agenerate("It was", constraint=vowels, **options)) == expected


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (lambda: np.ones(5, bool), r"returned an array \(5,\) of bool; it must .* \(4096,\)"),
        (lambda: np.ones(4096), r"of float64; it must return \(4096,\) of bool"),
        (lambda: [True, False], r"returned an array \(2,\)"),
        (lambda: np.zeros(4096, bool), "every token is ruled out"),
    ],
)
def test_masks_of_a_constraint_are_checked(lm, vowels, allowed, message):
    class Wrong(Vowels):
        def allowed(self):
            return allowed()

    with pytest.raises(InvalidArgumentError, match=message):
        lm.generate("It was", constraint=Wrong(vowels.texts, 3))


def test_what_is_no_constraint(lm, vowels):
    with pytest.raises(InvalidArgumentError, match=r"constraint is 'yes'; it must be an object"):
        lm.generate("It was", constraint="yes")
    with pytest.raises(InvalidArgumentError, match="constraint cannot be combined with choices"):
        lm.generate("It was", constraint=vowels, choices=["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(a?){8000}"}, r"too large, .*in place of \(x\?\)"),
        ({"regex": r"(a)\1"}, r"at offset 3: \\1 is not supported"),
    ],
)
def test_bad_input(lm, options, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        lm.stream("It was", **options)  # before the first token
    assert "\n" not in str(caught.value)
