"""A pass without a hook costs nothing extra compared with a model without hook points."""

from statistics import median

import hook_cost
import numpy as np
import pytest

from gpt2np.kernels.blas import small_kernels


@pytest.fixture(scope="module")
def models():
    return hook_cost.three_models(hook_cost.SHAPES["tiny"])


def test_the_other_model_has_no_points_and_gives_the_same_bits(models, show):
    model, other, _ = models
    seen = []

    def look(name, array):
        seen.append(name)
        return array

    ids = np.arange(100)
    without = other.forward([ids], hook=look)
    assert seen == []
    np.testing.assert_array_equal(without, model.forward([ids], hook=look))
    assert len(seen) == 3 + 4 * 13
    if small_kernels():
        np.testing.assert_array_equal(without, model.forward([ids]))
    np.testing.assert_allclose(without, model.forward([ids]), atol=1e-6)

    title = "hook: seconds of a pass without a hook ÷ a pass without hook points, tiny model"
    for tokens in (1, 100):
        ratio = median(hook_cost.ratios((model, other), tokens, 40))
        show(title, f"{tokens:3} tokens: {ratio:.3f}; more in benchmarks/hook_cost.py")
