"""The pure functions against torch, in float64, and against hand-worked values."""

import math

import numpy as np
import pytest
import torch

from gpt2np.model import ops as f

RNG = np.random.default_rng(0)


def test_layer_norm_against_torch():
    x, w, b = RNG.normal(2, 5, (7, 33)), RNG.normal(size=33), RNG.normal(size=33)
    expected = torch.nn.functional.layer_norm(
        torch.tensor(x), (33,), torch.tensor(w), torch.tensor(b), 1e-5
    )
    np.testing.assert_allclose(f.layer_norm(x, w, b, 1e-5), expected.numpy(), atol=1e-12)


def test_layer_norm_by_hand():
    """[1, 3] has mean 2 and variance 1."""
    x = np.array([[1.0, 3.0]])
    result = f.layer_norm(x, np.array([10.0, 10.0]), np.array([0.0, 5.0]), 0.0)
    np.testing.assert_allclose(result, [[-10.0, 15.0]])


def test_gelu_new_against_torch_where_it_is_hard():
    x = np.concatenate([np.linspace(-40, 40, 4001), [0.0, -0.0, 1e-30, -1e4, 1e4]])
    expected = torch.nn.functional.gelu(torch.tensor(x), approximate="tanh").numpy()
    np.testing.assert_allclose(f.gelu_new(x), expected, atol=1e-14)
    ours = f.gelu_new(x.astype(np.float32))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_gelu_is_the_tanh_form_and_not_the_erf_form():
    erf_form = 0.5 * 3 * (1 + math.erf(3 / math.sqrt(2)))
    assert abs(f.gelu_new(np.array([3.0]))[0] - erf_form) > 1e-4


def test_gelu_of_the_largest_numbers_is_finite_or_zero():
    x = np.array([-3e38, -1e20, 1e10], np.float32)
    with np.errstate(over="ignore"):
        assert np.array_equal(f.gelu_new(x), np.array([0, 0, 1e10], np.float32))


def test_softmax():
    x = RNG.normal(0, 30, (5, 60))
    expected = torch.softmax(torch.tensor(x), -1).numpy()
    np.testing.assert_allclose(f.softmax(x), expected, atol=1e-15)
    np.testing.assert_array_equal(f.softmax(np.array([1e4, -np.inf, 1e4])), [0.5, 0, 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_function_keeps_the_dtype(dtype):
    x = RNG.normal(size=(2, 3, 4)).astype(dtype)
    results = [f.layer_norm(x, x[0, 0], x[0, 1], 1e-5), f.gelu_new(x), f.softmax(x)]
    assert {result.dtype for result in results} == {np.dtype(dtype)}
