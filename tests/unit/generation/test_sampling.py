"""A sampled id is where a random number falls; what penalties and bans read of a text."""

import math

import numpy as np
import pytest

from gpt2np import GenerationOptions
from gpt2np.generation.logits_processors import add_logit_bias
from gpt2np.generation.sampling import next_id, next_probabilities, top_k_candidates


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 100.0])
@pytest.mark.parametrize("size", [3, 700, 5000])
def test_sampled_id_is_that_of_the_cumulative_probabilities(size, scale):
    rng = np.random.default_rng(size)
    others = {"top_p": 0.8, "min_p": 0.02, "typical_p": 0.9}
    for top_k, temperature in ((1, 0.3), (5, 1.0), (40, 7.0), (size, 0.8), (0, 2.0)):
        filters = {"top_k": top_k} if top_k else others
        options = GenerationOptions(temperature=temperature, **{"top_k": 0} | filters)
        for _ in range(20):
            logits = rng.normal(5, scale, size).astype(np.float32).round(rng.integers(1, 8))
            logits[rng.random(size) < rng.choice([0, 0.1, 0.99])] = -math.inf
            logits[-1] = logits.max() if math.isfinite(logits.max()) else 0
            kept = np.flatnonzero(next_probabilities(logits, options))
            assert not top_k or np.isin(kept, top_k_candidates(logits, top_k)).all()
            cumulative = next_probabilities(logits, options)[kept].cumsum()
            x = rng.random()
            expected = kept[cumulative.searchsorted(x * cumulative[-1], side="right")]
            assert next_id(logits, options, lambda x=x: x) == expected
    assert size < 5000 or scale < 1 or len(top_k_candidates(logits, 5)) < size / 10


VOCAB_SIZE = 50


def test_a_bias_adds_up_in_the_type_of_the_logits():
    logits = np.linspace(-1, 1, VOCAB_SIZE, dtype=np.float32)
    expected = logits.copy()
    for token_id, value in ((3, 0.1), (7, -1e-3), (3, 0.3)):
        expected[token_id] += value
    bias = add_logit_bias(logits, ((3, 0.1), (7, -1e-3), (3, 0.3)))
    np.testing.assert_array_equal(bias, expected)
