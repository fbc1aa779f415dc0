"""A model without hook points, with which benchmarks/hook_cost.py compares, has the same bits."""

import hook_cost
import numpy as np
import pytest

from gpt2np.kernels.blas import small_kernels


@pytest.fixture(scope="module")
def models():
    return hook_cost.three_models(hook_cost.SHAPES["tiny"])


def test_the_other_model_has_no_points_and_gives_the_same_bits(models):
    model, other, _ = models
    seen = []

    def look(name, array):
        seen.append(name)
        return array

    ids = np.arange(100)
    without = other.forward([ids], hook=look)
    assert {name.split(".", 2)[2] for name in seen} == {"attn.q", "attn.k", "attn.v"}
    seen.clear()
    np.testing.assert_array_equal(without, model.forward([ids], hook=look))
    assert len(seen) == 3 + 4 * 13
    if small_kernels():
        np.testing.assert_array_equal(without, model.forward([ids]))
    np.testing.assert_allclose(without, model.forward([ids]), atol=1e-6)
