"""The exact functions are accurate, and exact products are as accurate as their bound says."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from helpers.random_models import random_model

from gpt2np import GPT2
from gpt2np.kernels import exact
from gpt2np.kernels.array import Array

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("function", "peer", "points", "tolerance"),
    [
        (exact.exp, math.exp, RNG.uniform(-700, 700, 3000), 3e-16),
        (exact.exp, math.exp, RNG.uniform(-1, 1, 3000), 3e-16),
        (exact.exp, math.exp, np.array([-708.5, -720.0, -744.0]), 0.5),
        (exact.log, math.log, np.exp(RNG.uniform(-600, 600, 3000)), 5e-16),
        (exact.log, math.log, RNG.uniform(0.5, 2, 3000), 5e-16),
        (exact.tanh, math.tanh, RNG.uniform(-20, 20, 3000), 8e-16),
        (exact.tanh, math.tanh, RNG.uniform(-1e-3, 1e-3, 3000), 8e-16),
        (exact.erf, math.erf, RNG.uniform(-7, 7, 3000), 3e-15),
    ],
)
def test_functions(
    function: Callable[[Array], Array],
    peer: Callable[[float], float],
    points: Array,
    tolerance: float,
) -> None:
    expected = [peer(x) for x in points.tolist()]
    np.testing.assert_allclose(function(points), expected, rtol=tolerance, atol=0)


def test_limits() -> None:
    x = np.array([-np.inf, -746.0, 0.0, 709.5, np.inf, np.nan])
    np.testing.assert_array_equal(exact.exp(x), [0, 0, 1, np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(exact.tanh(x), [-1, -1, 0, 1, 1, np.nan])
    np.testing.assert_array_equal(exact.erf(x), [-1, -1, 0, 1, 1, np.nan])


def test_out_may_be_a_view_of_the_argument() -> None:
    x = RNG.standard_normal((3, 8))
    expected = exact.exp(x[:, :5].copy())
    result = exact.exp(x[:, :5], out=x[:, :5])
    np.testing.assert_array_equal(x[:, :5], expected)
    assert result.base is x


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 1000])
def test_sums_do_not_depend_on_zeros_at_the_end(n: int) -> None:
    x = RNG.standard_normal((4, n))
    sums = exact.row_sums(x)
    np.testing.assert_array_equal(sums, exact.row_sums(np.pad(x, ((0, 0), (0, 77)))))
    np.testing.assert_allclose(sums[:, 0], [math.fsum(row) for row in x], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("spread", [0, 8, 30])
def test_products_keep_their_bound(spread: float) -> None:
    """|error| ≤ 3·k·2⁻⁴⁴·2ᵉ·2ᶠ, and one rounding; also for rows of very different sizes."""
    x = RNG.standard_normal((5, 700)) * np.exp(RNG.uniform(-spread, spread, (5, 1)))
    w = RNG.standard_normal((700, 6)) * np.exp(RNG.uniform(-spread, spread, (1, 6)))
    exact_sums = [[math.fsum(_products(row, column)) for column in w.T] for row in x]
    bound = (
        3 * 700 * 2.0**-44 * (exact.to_slices(x, -1).scale * exact.to_slices(w, 0).scale) * 2.0**42
    )
    bound += 2.0**-52 * np.abs(exact_sums)
    assert (np.abs(exact.matmul(x, w) - exact_sums) <= bound).all()
    weighted = exact.weighted_rows(x, w)
    assert np.abs(weighted - exact_sums).max() <= 1e-10 * np.abs(x).max() * np.abs(w).max() * 700


def _products(x: Array, w: Array) -> list[float]:
    """Return numbers whose sum is exactly that of x · w: each factor split into halves."""
    high_x, high_w = (np.float32(a).astype(np.float64) for a in (x, w))
    pairs = [(high_x, high_w), (high_x, w - high_w), (x - high_x, high_w), (x - high_x, w - high_w)]
    return [product for a, b in pairs for product in (a * b).tolist()]


def test_products_of_slices_are_integers_that_float64_holds() -> None:
    x = np.full((1, exact.BLOCK), 1 - 2.0**-40)
    hi, lo, _ = exact.to_slices(x, -1)
    assert np.abs(hi).max() <= 2**21 and np.abs(lo).max() <= 2**21
    assert 2 * exact.BLOCK * 2**42 <= 2**53


def test_linear_is_the_same_for_any_rows_and_columns() -> None:
    x, w = RNG.standard_normal((70, 2500)), RNG.standard_normal((2500, 300))
    layer = exact.ExactLinear.of(w.T, RNG.standard_normal(300))
    whole = exact.linear(x, layer)
    np.testing.assert_array_equal(whole[3:4], exact.linear(x[3:4], layer))
    columns = exact.ExactLinear.of(w.T[50:90], layer.bias[50:90])
    np.testing.assert_array_equal(whole[:, 50:90], exact.linear(x, columns))
    np.testing.assert_allclose(whole, x @ w + layer.bias, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [1, 100])
def test_a_layer_cuts_its_input_once(n, monkeypatch):
    """Also the layer of queries, keys and values, whose heads are computed in several parts."""
    shape = {"vocab_size": 97, "n_positions": 128, "n_embd": 24, "n_head": 4, "n_layer": 2}
    model = random_model(**shape, n_inner=50)
    model = GPT2(model.config, model.weights, exact=True)
    shapes, to_slices = [], exact.to_slices
    monkeypatch.setattr(
        exact, "to_slices", lambda x, axis: shapes.append(x.shape) or to_slices(x, axis)
    )
    model.forward([[5] * n])
    # In each block attn.c_attn, attn.c_proj and mlp.c_fc; then the unembedding.
    rows = {width: sum(shape[0] for shape in shapes if shape[1:] == (width,)) for width in (24, 50)}
    assert rows == {24: (3 * 2 + 1) * n, 50: 2 * n}
