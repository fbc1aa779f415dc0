"""Packed matrices of int8: rounding, panels, and what they return."""

import numpy as np
import pytest

from gpt2np.kernels.packed_matrix import PackedMatrix, packed_size, quantize

PANEL_SHAPES = [(20, 16), (7, 16), (20, 5), (6, 64)]


def random_matrix(n_in=20, n_out=33, dtype=np.float32):
    """Return a matrix whose columns have very different sizes; column 3 is 0."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(n_in, n_out)) * np.exp(3 * rng.normal(size=n_out))
    matrix[:, 3] = 0
    return matrix.astype(dtype)


def pack_int8(matrix, panel_shape):
    buffer = np.full(packed_size(matrix.shape, panel_shape), 99, np.int8)
    packed = PackedMatrix.in_buffer(buffer, matrix.shape, panel_shape, matrix.dtype)
    packed.fill(matrix)
    return packed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_changes_a_weight_by_half_a_scale_at_most(dtype):
    matrix = random_matrix(300, 1000, dtype)
    integers, scale = quantize(matrix)
    assert integers.dtype == scale.dtype == dtype and scale.shape == (1000,)
    assert (integers == np.rint(integers)).all() and np.abs(integers).max(0).tolist() == [
        *[127] * 3,
        0,
        *[127] * 996,
    ]
    errors = np.abs(integers.astype(np.float64) * scale - matrix).max(0)
    assert (errors <= 0.5001 * scale).all() and (errors > 0.4 * scale).sum() > 900


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantizing_again_changes_nothing(dtype):
    integers, scale = quantize(random_matrix(300, 1000, dtype))
    exact = integers.astype(np.longdouble) * scale
    assert (exact == integers * scale).all()  # no digit is lost
    again, scale_again = quantize(integers * scale)
    np.testing.assert_array_equal(again, integers)
    np.testing.assert_array_equal(scale_again, scale)


def test_zeros_and_smallest_numbers_have_finite_scales():
    matrix = np.array([[0, 1e-45, -3e38, 1], [0, 0, 1, -1]], np.float32)
    integers, scale = quantize(matrix)
    np.testing.assert_array_equal(integers, [[0, 0, -127, 127], [0, 0, 0, -127]])
    assert (scale > 0).all() and np.isfinite(integers * scale).all()


@pytest.mark.parametrize("panel_shape", PANEL_SHAPES)
def test_panels_of_int8_unpack_to_the_rounded_matrix(panel_shape):
    matrix = random_matrix()
    packed = pack_int8(matrix, panel_shape)
    k, m = panel_shape
    rounded, sum_of_integers = np.empty_like(matrix), 0
    for start in range(0, 20, k):  # each group of inputs has scales of its own
        integers, scale = quantize(matrix[start : start + k])
        rounded[start : start + k] = integers * scale
        sum_of_integers += np.abs(integers).sum()
    assert packed.data.dtype == np.int8
    assert np.abs(packed.data.astype(int)).sum() == sum_of_integers  # zeros pad the panels
    np.testing.assert_array_equal(packed.unpack(), rounded)
    assert packed.unpack().dtype == np.float32
    columns = np.array([32, 0, 3, 5])
    np.testing.assert_array_equal(packed[columns], rounded.T[columns])
    part = packed.column_range(m, 33) if m < 33 else packed.column_range(0, 33)
    start = 33 - part.shape[1]
    np.testing.assert_array_equal(part.unpack(), rounded[:, start:])
    packed.fill(-matrix[:, start:], start)
    np.testing.assert_array_equal(packed.unpack()[:, start:], -rounded[:, start:])
    np.testing.assert_array_equal(packed.unpack()[:, :start], rounded[:, :start])
