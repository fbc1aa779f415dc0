"""Activation functions and softmax against torch, in both dtypes, and where they are hard."""

import numpy as np
import pytest
from helpers.peers import torch, transformers

from gpt2np.model.ops import ACTIVATIONS, softmax

X = np.concatenate([np.linspace(-40, 40, 40_001), [0.0, -0.0, 1e-30, -1e-30, -1e4, 1e4]])


def reference(name, x):
    return transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_against_transformers_function_of_the_same_name(name):
    exact = reference(name, X)
    np.testing.assert_allclose(ACTIVATIONS[name](X), exact, rtol=1e-14, atol=6e-15)
    x = X.astype(np.float32)
    ours, theirs = ACTIVATIONS[name](x), reference(name, x)
    exact = reference(name, x.astype(np.float64))
    assert ours.dtype == np.float32
    off, theirs_off = (np.abs(y - exact)[np.abs(x) < 20].max() for y in (ours, theirs))
    assert off <= 2 * theirs_off
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 5])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rounding_errors_of_normal_inputs(name, scale):
    """Also no systematic error, which would add up over the neurons of a layer."""
    x = np.random.default_rng(0).normal(0, scale, 50_000).astype(np.float32)
    exact = reference(name, x.astype(np.float64))
    unit = np.sqrt(np.mean(np.square(exact))) / 2**24
    error = (ACTIVATIONS[name](x) - exact) / unit
    assert np.sqrt(np.mean(np.square(error))) < 1 and abs(error.mean()) < 0.15


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_the_largest_numbers(name):
    x = np.array([-3e38, -1e20, 1e10], np.float32)
    with np.errstate(over="ignore"):
        expected = [-1, -1, 1] if name == "tanh" else [0, 0, 1e10]
        np.testing.assert_array_equal(ACTIVATIONS[name](x), np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax(dtype):
    x = np.random.default_rng(0).normal(0, 30, (5, 60)).astype(dtype)
    expected = torch.softmax(torch.tensor(x), -1).numpy()
    assert softmax(x).dtype == dtype
    np.testing.assert_allclose(softmax(x), expected, rtol=1e-5, atol=1e-15)
    np.testing.assert_array_equal(softmax(np.array([1e4, -np.inf, 1e4], dtype)), [0.5, 0, 0.5])
