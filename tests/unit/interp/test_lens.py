"""The logit lens against the model's logits and against its formula in float64."""

import numpy as np
import pytest

from gpt2np import InvalidArgumentError
from gpt2np.interp import lens_table, logit_lens, trace
from gpt2np.interp.analysis import top_k
from gpt2np.kernels.blas import small_kernels


def by_formula(model, residual, head="wte.weight"):
    x = residual.astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * model.weights["ln_f.weight"] + model.weights["ln_f.bias"]
    return x @ model.weights[head].astype(np.float64).T


def test_of_the_last_residual_it_is_the_models_logits(model, traced):
    logits = logit_lens(model, traced["blocks.2.resid"])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, traced["logits"], atol=1e-5)
    if small_kernels():
        np.testing.assert_array_equal(logits, traced["logits"])


def test_any_residual_of_any_shape(model, traced):
    residuals = np.stack([traced["embed"], traced["blocks.1.resid_mid"]])
    logits = logit_lens(model, residuals)
    assert logits.shape == (2, 30, 211)
    np.testing.assert_allclose(logits, by_formula(model, residuals), atol=1e-4)
    np.testing.assert_array_equal(logit_lens(model, residuals[1, 3]).shape, (211,))


@pytest.mark.parametrize("last", [None, 7, 99])
def test_table(model, traced, last, monkeypatch):
    monkeypatch.setattr("gpt2np.interp.analysis._CHUNK", 8)  # to have several chunks
    table = lens_table(model, traced, 3, last=last)
    points = ["embed", "blocks.0.resid", "blocks.1.resid", "blocks.2.resid"]
    rows = min(last or 30, 30)
    assert list(table.points) == points and table.ids.shape == (4, rows, 3)
    assert table.positions.tolist() == list(range(30 - rows, 30))
    for k, point in enumerate(points):
        logits = by_formula(model, traced[point])[table.positions]
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        expected = np.sort(p)[:, :-4:-1]
        np.testing.assert_allclose(table.probabilities[k], expected, atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(p, table.ids[k], -1), expected, atol=1e-6)


def test_lens_table_wrong_arguments_are_named(model, traced):
    for n in (0, 212):
        message = f"n is {n}; it must be an integer from 1 to 211"
        with pytest.raises(InvalidArgumentError, match=message):
            lens_table(model, traced, n)
    for last in (0, -1, "3"):
        message = f"last is {last!r}; it must be an integer, at least 1, or None for all"
        with pytest.raises(InvalidArgumentError, match=message):
            lens_table(model, traced, last=last)
    with pytest.raises(InvalidArgumentError, match=r"lacks blocks\.0\.resid"):
        lens_table(model, trace(model, traced.ids, "embed"))


@pytest.mark.parametrize("n", [1, 2, 5, 40, 999, 1000])
def test_likeliest_is_the_beginning_of_a_stable_sorting(n):
    scores = np.random.default_rng(3).integers(0, 30, (4, 1000)).astype(np.float32)
    scores[1] = 0
    scores[2] = -1
    scores[2, [5, 900]] = 1
    expected = np.argsort(-scores, axis=-1, kind="stable")[:, :n]
    np.testing.assert_array_equal(top_k(scores, n), expected)
    np.testing.assert_array_equal(top_k(scores.reshape(2, 2, 1000), n)[1, 0], expected[2])
    assert top_k(scores, n)[2, 0] == scores[2].argmax() == 5
