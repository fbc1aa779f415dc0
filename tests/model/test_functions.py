"""The pure functions against torch, in float64, and against hand-worked values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.model import functions as f

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


def test_linear_is_in_times_in_out():
    x, w, b = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 6)), RNG.normal(size=6)
    np.testing.assert_allclose(f.linear(x, w, b), np.einsum("ni,io->no", x, w) + b)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 300), cached=st.integers(0, 150), heads=st.integers(1, 3))
def test_causal_attention_against_torch(n, cached, heads):
    rng = np.random.default_rng(n + 1000 * cached)
    q = rng.normal(size=(heads, n, 5))
    k, v = rng.normal(size=(2, heads, cached + n, 5))
    mask = torch.ones(n, cached + n, dtype=torch.bool).tril(cached)
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(q), torch.tensor(k), torch.tensor(v), attn_mask=mask, scale=0.3
    )
    result = f.causal_attention(q, k, v, 0.3)
    np.testing.assert_allclose(result, expected.numpy(), atol=1e-12)


def test_heads_split_and_merge():
    x = RNG.normal(size=(4, 15))
    heads = f.split_heads(x, 3)
    assert heads.shape == (3, 4, 5)
    np.testing.assert_array_equal(heads[1], x[:, 5:10])
    np.testing.assert_array_equal(f.merge_heads(heads), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_function_keeps_the_dtype(dtype):
    x = RNG.normal(size=(2, 3, 4)).astype(dtype)
    vector, matrix = x[0, 0], x[0].T.copy()
    results = [
        f.layer_norm(x, vector, vector, 1e-5),
        f.linear(x[0], matrix, vector[:3]),
        f.gelu_new(x),
        f.softmax(x),
        f.attention_pattern(x, x, 0.5),
        f.causal_attention(x, x, x, 0.5),
    ]
    assert {result.dtype for result in results} == {np.dtype(dtype)}
