"""Accuracy of the layer norm where the mean is far above the deviation."""

import numpy as np
import pytest

from gpt2np.model.ops import layer_norm


@pytest.mark.parametrize("mean", [0, 1, 10, 100, 1000])
@pytest.mark.parametrize("width", [8, 768])
def test_the_mean_does_not_cost_digits(mean, width):
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.standard_normal(s, np.float32) for s in ((200, width), width, width))
    x += np.float32(mean)
    wide = x.astype(float)
    scale = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    exact = (wide - wide.mean(-1, keepdims=True)) / scale * weight + bias
    error = np.sqrt(np.square(layer_norm(x, weight, bias, 1e-5) - exact).mean())
    assert error < 1.5 * 2**-24 * np.sqrt(np.square(exact).mean())
