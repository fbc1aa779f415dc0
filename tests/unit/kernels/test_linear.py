"""Linear layers on packed matrices, for any number of rows and threads."""

from dataclasses import replace

import numpy as np
import pytest

from gpt2np.kernels import matmul, packed_matrix
from gpt2np.kernels.packed_matrix import (
    PackedMatrix,
    by_rows,
    linear,
    packed_size,
    project_heads,
    sum_partials,
)


@pytest.fixture(params=[True, False], ids=["small kernels", "any BLAS"], autouse=True)
def either_way(request, monkeypatch):
    """Both ways to store and multiply a matrix, whatever this machine's BLAS is best at."""
    for each in (matmul, packed_matrix):
        monkeypatch.setattr(each, "small_kernels", lambda: request.param)
    monkeypatch.setattr(packed_matrix, "MIN_SIZE_BY_OUTPUT", 0)


def pack(matrix, panel_shape):
    buffer = np.empty(packed_size(matrix.shape, panel_shape))
    packed = PackedMatrix.in_buffer(buffer, matrix.shape, panel_shape)
    packed.fill(matrix)
    return packed


def pack_int8(matrix, panel_shape):
    buffer = np.empty(packed_size(matrix.shape, panel_shape), np.int8)
    packed = PackedMatrix.in_buffer(buffer, matrix.shape, panel_shape, matrix.dtype)
    packed.fill(matrix)
    return packed


@pytest.mark.parametrize("n", [0, 1, 2, 9, 16, 17, 100])
@pytest.mark.parametrize("inputs", [96, 32, 50], ids=["one group", "three", "two, uneven"])
def test_linear_is_x_times_w_plus_b(n, inputs):
    rng = np.random.default_rng(n)
    x, w, b = rng.normal(size=(n, 96)), rng.normal(size=(96, 128)), rng.normal(size=128)
    without = pack(w, (inputs, 64))
    with_bias = replace(without, bias=b)
    np.testing.assert_allclose(linear(x, with_bias), x @ w + b, atol=1e-12)
    np.testing.assert_allclose(linear(x, without), x @ w, atol=1e-12)
    np.testing.assert_array_equal(linear(x, with_bias, np.tanh), np.tanh(linear(x, with_bias)))
    np.testing.assert_allclose(
        linear(x, with_bias.column_range(64, 128)), linear(x, with_bias)[:, 64:], atol=1e-12
    )


@pytest.mark.parametrize("n", [0, 1, 2, 9, 16, 17, 100])
@pytest.mark.parametrize("inputs", [96, 32, 50], ids=["one group", "three", "two, uneven"])
def test_linear_with_8_bit_weights_is_that_with_the_rounded_weights(n, inputs):
    rng = np.random.default_rng(n)
    x, w, b = (rng.normal(size=size).astype(np.float32) for size in ((n, 96), (96, 100), 128))
    packed = pack_int8(w * np.exp(rng.normal(size=100)).astype(np.float32), (inputs, 64))
    layer = replace(packed, bias=b)
    exact = x.astype(np.float64) @ packed.unpack() + b[:100]
    y = linear(x, layer)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exact, atol=1e-4)
    np.testing.assert_allclose(linear(x, layer.column_range(64, 100)), y[:, 64:], atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 2, 40])
@pytest.mark.parametrize("inputs", [48, 20], ids=["one group", "three, uneven"])
@pytest.mark.parametrize("packing", [pack, pack_int8])
def test_some_heads_are_those_of_the_whole_product(packing, n, inputs):
    rng = np.random.default_rng(n)
    x, b = rng.normal(size=(n, 48)), rng.normal(size=(3, 4, 1, 16))
    packed = packing(rng.normal(size=(48, 192)) * np.exp(rng.normal(size=192)), (inputs, 16))
    heads = replace(packed, bias=b.reshape(-1))
    exact = (x @ packed.unpack()).reshape(n, 3, 4, 16).transpose(1, 2, 0, 3) + b
    np.testing.assert_allclose(project_heads(x, heads, slice(0, 4)), exact, atol=1e-12)
    np.testing.assert_allclose(project_heads(x, heads, slice(2, 3)), exact[:, 2:3], atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 64, 65, 500])
def test_by_rows_is_the_function_of_all_rows(n, threads, monkeypatch):
    monkeypatch.setattr(packed_matrix, "python_threads", lambda: threads)
    x = np.random.default_rng(n).normal(size=(n, 3))
    sizes = []

    def function(rows):
        sizes.append(len(rows))
        return rows.sum(1, keepdims=True)

    np.testing.assert_array_equal(by_rows(function, x, width=1)[:, 0], x.sum(1))
    largest = 64 if packed_matrix.small_kernels() else 256
    assert sum(sizes) == n and (n <= 64 or max(sizes) <= largest)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 64), (16, 12, 1, 64), (4, 393, 1, 16), (8, 4, 8, 64)])
@pytest.mark.parametrize("rows_in_memory", [1, 2])
def test_partials_are_added_in_ascending_order(shape, dtype, rows_in_memory):
    groups, *stack, n, m = shape
    memory = np.random.default_rng(0).standard_normal((groups, *stack, n * rows_in_memory, m))
    partials = memory.astype(dtype)[..., :n, :]
    expected = partials[0].copy()
    for term in partials[1:]:
        expected = expected + term
    result = sum_partials(partials)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)
