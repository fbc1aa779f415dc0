"""Requests that would take much memory are refused before they take it."""

import tracemalloc

import pytest

from gpt2np import ContextLengthError, GenerationOptions, InvalidArgumentError
from gpt2np.generation import options
from gpt2np.generation.sequence import start_sequences


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("choices", [["a"] * 1_000_000, ["a" * 10_000_000]])
def test_large_choices(choices):
    def refuse():
        with pytest.raises(InvalidArgumentError, match=r"must be one or more .* 50,000 characters"):
            GenerationOptions(choices=choices)

    assert peak_memory(refuse) < 1_000_000


def test_a_long_prompt_is_refused_before_it_is_encoded(lm):
    text = " " * 10_000_000

    def refuse():
        with pytest.raises(ContextLengthError, match="has 10,000,000 characters, at least"):
            lm.generate(text)

    assert peak_memory(refuse) < 5_000_000


def test_a_prompt_as_long_as_tokens_can_hold(lm):
    """The longest token, as often as the context has tokens, is not refused."""
    table = lm.tokenizer.vocabulary.token_bytes
    special = set(lm.tokenizer.special_tokens.values())
    longest = max((b for i, b in table.items() if i not in special), key=len).decode()
    lm.generate(longest * (lm.model.config.n_positions - 1), max_new_tokens=1)


def test_options_of_continuations_are_not_checked_again(lm, monkeypatch):
    """1,000 continuations with 1,000 banned texts took four seconds of the server's preparation."""
    bad_words = [f"word{i}" for i in range(50)]
    request = lm.request("The fox", num_return_sequences=20, seed=7, bad_words=bad_words)
    checks = []
    monkeypatch.setattr(options, "check_options", lambda given: checks.append(given))
    sequences = start_sequences(lm.model, request)
    assert not checks
    assert [s.request.options.seed for s in sequences] == list(range(7, 27))
    assert all(s.request.options.bad_words_ids for s in sequences)
