"""Logits of the exact pass beside a pass in long double, which has 11 bits more."""

import numpy as np
import pytest
from record_bits import random_ids, random_model

from gpt2np import GPT2
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.plain import PlainContext, arrange_arrays

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="long double is float64 on this platform"
)


def distance(model: GPT2, ids: list[int]) -> float:
    """Return the largest difference, in units of the logits' RMS; every arg-max must be equal."""
    weights = {name: array.astype(np.longdouble) for name, array in model.weights.items()}
    right = gpt2(PlainContext(ids, model.config), arrange_arrays(model.config, weights))
    assert right.dtype == np.longdouble
    logits = GPT2(model.config, dict(model.weights), exact=True).forward([ids])
    assert np.array_equal(logits.argmax(-1), right.argmax(-1))
    return float(np.abs(logits - right).max() / np.sqrt(np.mean(right * right)))


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_random_checkpoints(count: int) -> None:
    rng, distances = np.random.default_rng(3), []
    for seed in range(count):
        heads, size, vocab, layers = rng.integers((1, 2, 50, 1), (9, 17, 400, 5)).tolist()
        model = random_model(vocab_size=vocab, n_embd=heads * size, n_head=heads, n_layer=layers)
        distances.append(distance(model, random_ids(int(rng.integers(1, 20)), seed, vocab)))
    assert 0 < max(distances) < 1e-10


@pytest.mark.slow
def test_the_shape_of_gpt2_small() -> None:
    model = random_model(vocab_size=5000, n_embd=768, n_head=12, n_layer=12)
    assert 0 < distance(model, random_ids(6, 1, 5000)) < 1e-10
