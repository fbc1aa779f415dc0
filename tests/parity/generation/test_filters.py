"""Sampling filters against transformers' logits processors."""

import numpy as np
import pytest
from helpers.peers import torch, transformers

from gpt2np import GenerationOptions
from gpt2np.generation.logits_processors import (
    apply_temperature,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.sampling import next_id, next_probabilities
from gpt2np.model.ops import softmax

RNG = np.random.default_rng(11)
CASES = {
    "normal": RNG.normal(0, 3, (20, 1000)),
    "gpt2's size": RNG.normal(-30, 4, (2, 50257)),
    "peaked": np.eye(8, 64) * 50,
    "ties": RNG.integers(-3, 4, (40, 100)),
    "all equal": np.zeros((2, 64)),
    "two tokens": RNG.normal(size=(10, 2)),
    "tiny": RNG.normal(0, 1e-30, (10, 100)),
    "some ruled out": np.where(RNG.random((10, 100)) < 0.5, -np.inf, RNG.normal(0, 2, (10, 100))),
}


@pytest.fixture(params=CASES)
def logits(request):
    return CASES[request.param].astype(np.float32)


@pytest.fixture(autouse=True)
def stable_sort(monkeypatch):
    """Make torch.sort stable: otherwise the order of ties, which top-p may cut, is arbitrary."""
    sort = torch.sort
    monkeypatch.setattr(
        "torch.sort", lambda x, descending: sort(x, descending=descending, stable=True)
    )


def warper(name, value):
    return getattr(transformers, name + "LogitsWarper")(value)


def check_same(ours, logits, *warpers):
    """The set that transformers keeps in float32, and its probabilities in float64."""
    kept, exact = torch.tensor(logits), torch.tensor(logits.astype(np.float64))
    for change in warpers:
        kept = change(None, kept)
        if isinstance(change, transformers.TemperatureLogitsWarper):
            exact = change(None, exact)
    exact = torch.softmax(exact.masked_fill(torch.isneginf(kept), -torch.inf), -1).numpy()
    np.testing.assert_array_equal(ours > 0, exact > 0)
    np.testing.assert_allclose(ours, exact, atol=1e-6)


def probabilities(logits):
    return softmax(logits.astype(np.float64))


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (apply_temperature, "Temperature", [0.1, 0.7, 1.0, 2.5]),
        (top_k_filter, "TopK", [1, 2, 7, 40, 63]),
        (top_p_filter, "TopP", [1e-9, 0.1, 0.37, 0.5, 0.9, 0.95, 0.999]),
        (min_p_filter, "MinP", [0.0, 1e-6, 0.05, 0.3, 0.9, 1.0]),
    ],
)
def test_filter_keeps_the_set_of_transformers(logits, ours, theirs, values):
    for value in values:
        check_same(probabilities(ours(logits, value)), logits, warper(theirs, value))


def test_top_p_keeps_equal_values_whatever_the_order_of_equals(logits, monkeypatch):
    monkeypatch.undo()
    kept = warper("TopP", 0.6)(None, torch.tensor(logits)).numpy()
    np.testing.assert_array_equal(np.sort(top_p_filter(logits, 0.6)), np.sort(kept))


def test_typical(logits):
    for p in (1e-9, 0.1, 0.5, 0.9, 0.999):
        check_typical(typical_filter(logits, p), logits, p)


def check_typical(ours, logits, p):
    """The set that transformers keeps in float64, up to float32's rounding.

    Tokens in which they differ weigh less than that, or lie at the border itself. (In float32
    transformers' own sum over 50,257 tokens is off by ten times as much.)
    """
    exact = torch.tensor(logits.astype(np.float64))
    kept = warper("Typical", p)(None, exact).numpy() > -np.inf
    differs = kept != (ours > -np.inf)
    probability = softmax(logits.astype(np.float64))
    log_p = np.log(np.maximum(probability, 1e-300))
    distance = np.abs(-log_p + (probability * log_p).sum(-1, keepdims=True))
    border = np.where(kept, distance, -1).max(-1, keepdims=True)
    at_border = np.abs(distance - border) <= 2e-5 * np.maximum(1, border)
    light = (probability * differs).sum(-1, keepdims=True) <= 1e-6
    assert (at_border | light | ~differs).all()
    np.testing.assert_array_equal(ours[ours > -np.inf], logits[ours > -np.inf])


def test_rows_of_many_scales():
    rng = np.random.default_rng(5)
    for _ in range(50):
        scale, size = 10.0 ** rng.uniform(-3, 3), int(rng.integers(2, 300))
        logits = rng.normal(rng.normal(0, 50), scale, (8, size)).astype(np.float32)
        k, p = int(rng.integers(1, size)), float(rng.uniform(0.01, 0.99))
        check_same(probabilities(top_k_filter(logits, k)), logits, warper("TopK", k))
        check_same(probabilities(top_p_filter(logits, p)), logits, warper("TopP", p))
        check_same(probabilities(min_p_filter(logits, p)), logits, warper("MinP", p))
        check_typical(typical_filter(logits, p), logits, p)


def test_typical_comes_last():
    rng = np.random.default_rng(8)
    for _ in range(50):
        logits = rng.normal(0, 3, (1, 60)).astype(np.float32)
        options = GenerationOptions(temperature=1.3, top_k=25, top_p=0.9, min_p=0.01, typical_p=0.6)
        warpers = (
            *(warper("Temperature", 1.3), warper("TopK", 25), warper("TopP", 0.9)),
            *(warper("MinP", 0.01), warper("Typical", 0.6)),
        )
        check_same(next_probabilities(logits, options), logits, *warpers)


def test_the_smallest_temperature_is_greedy_and_not_nan():
    options = GenerationOptions(temperature=5e-324, top_k=0)
    probabilities = next_probabilities(np.array([1.0, 3.0, 2.0], np.float32), options)
    assert probabilities.tolist() == [0, 1, 0]


def test_greedy_takes_the_first_of_equals():
    options = GenerationOptions(temperature=0)
    logits = np.array([0, 2, 2], np.float32)
    assert next_probabilities(logits, options).tolist() == [0, 1, 0]
    assert next_id(logits, options, np.random.default_rng(0).random) == 1
