"""Linear layers on packed matrices, for any number of rows and threads."""

import numpy as np
import pytest

from gpt2np.kernels import linear as module
from gpt2np.kernels.linear import PackedLinear, linear, map_rows
from gpt2np.kernels.packed_matrix import PackedMatrix, packed_size


def pack(matrix, panel_shape):
    buffer = np.empty(packed_size(matrix.shape, panel_shape))
    packed = PackedMatrix.in_buffer(buffer, matrix.shape, panel_shape)
    packed.fill(matrix)
    return packed.data


@pytest.mark.parametrize("n", [0, 1, 2, 9, 16, 17, 100])
@pytest.mark.parametrize("inputs", [96, 32, 50], ids=["one group", "three", "two, uneven"])
def test_linear_is_x_times_w_plus_b(n, inputs):
    rng = np.random.default_rng(n)
    x, w, b = rng.normal(size=(n, 96)), rng.normal(size=(96, 128)), rng.normal(size=128)
    panels = pack(w, (inputs, 64))
    with_bias, without = (PackedLinear("", panels, bias, 128) for bias in (b, None))
    np.testing.assert_allclose(linear(x, with_bias), x @ w + b, atol=1e-12)
    np.testing.assert_allclose(linear(x, without), x @ w, atol=1e-12)
    np.testing.assert_array_equal(linear(x, with_bias, np.tanh), np.tanh(linear(x, with_bias)))
    np.testing.assert_array_equal(
        linear(x, with_bias.panel_range(slice(1, 2))), linear(x, with_bias)[:, 64:]
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 64, 65, 500])
def test_map_rows_is_the_function_of_all_rows(n, threads, monkeypatch):
    monkeypatch.setattr(module, "python_threads", lambda: threads)
    x = np.random.default_rng(n).normal(size=(n, 3))
    sizes = []

    def function(rows):
        sizes.append(len(rows))
        return rows.sum(1, keepdims=True)

    np.testing.assert_array_equal(map_rows(function, 1, x)[:, 0], x.sum(1))
    assert sum(sizes) == n and (n <= 64 or max(sizes) <= 64)
