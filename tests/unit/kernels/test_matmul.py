"""Matrix products with any number of rows: correct, and each row with the same bits."""

import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.kernels import matmul as module
from gpt2np.kernels.blas import blas, single_threaded_blas, small_kernels
from gpt2np.kernels.matmul import matmul, row_sums
from gpt2np.kernels.threads import even_slices

needs_small_kernels = pytest.mark.skipif(
    not small_kernels(), reason="this machine's BLAS has no small-matrix kernels"
)


@pytest.fixture(params=[True, False], ids=["small kernels", "any BLAS"])
def either_way(request, monkeypatch):
    monkeypatch.setattr(module, "small_kernels", lambda: request.param)


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(0, 90),
    k=st.integers(1, 200),
    lanes=st.integers(1, 5),
    front=st.sampled_from([(), (3,), (2, 4)]),
)
def test_against_float64(n, k, lanes, front):
    rng = np.random.default_rng(n + 100 * k)
    x = rng.normal(size=(n, k)).astype(np.float32)
    w = rng.normal(size=(*front, k, 16 * lanes)).astype(np.float32)
    y = matmul(x, w)
    assert y.dtype == np.float32 and y.shape == (*front, n, 16 * lanes)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.astype(np.float64), atol=2e-4)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("n", [1, 2, 8, 9, 16, 17, 33, 70, 200])
def test_into_an_array_with_strides(n):
    rng = np.random.default_rng(n)
    x, w = rng.normal(size=(n, 40)), rng.normal(size=(6, 40, 32))
    y = np.full((n, 6, 32), np.nan)
    result = matmul(x, w, out=y.swapaxes(0, 1))
    np.testing.assert_allclose(y.swapaxes(0, 1), x @ w, atol=1e-12)
    np.testing.assert_array_equal(result, y.swapaxes(0, 1))


@pytest.mark.parametrize("k", [1, 200, 768, 3072, 70_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_few_rows_of_a_matrix_stored_by_outputs(k, threads, monkeypatch):
    """Without small-matrix kernels: one GEMV per row, a part of the columns after the other."""
    monkeypatch.setattr(module, "small_kernels", lambda: False)
    monkeypatch.setattr(module, "MIN_SHARED_WORK", 0)
    monkeypatch.setattr(module, "python_threads", lambda: threads)
    rng = np.random.default_rng(k)
    for m in (16, 80, 192) if k < 70_000 else (16,):
        x, w = rng.normal(size=(2, 3, k)), rng.normal(size=(2, m, k)).swapaxes(-2, -1)
        rows = [matmul(x[:, [i]], w) for i in range(3)]
        np.testing.assert_allclose(np.concatenate(rows, 1), x @ w, atol=1e-9)
        np.testing.assert_allclose(matmul(x, w), x @ w, atol=1e-9)
        y = np.full((3, 2, m), np.nan).swapaxes(0, 1)
        assert matmul(x, w, out=y) is y
        np.testing.assert_allclose(y, x @ w, atol=1e-9)
        np.testing.assert_allclose(matmul(x, w[0]), x @ w[0], atol=1e-9)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("n", [0, 1, 2, 16, 65, 200])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("most", [1, 2000, 200_000])
def test_matrices_of_int8(n, threads, most, monkeypatch):
    """Converted one panel at a time, a few, or all; with rows of their own or the same ones."""
    monkeypatch.setattr(module, "MIN_SHARED_WORK", 0)
    monkeypatch.setattr(module, "python_threads", lambda: threads)
    monkeypatch.setattr(module, "_MAX_CONVERTED", most)
    rng = np.random.default_rng(n)
    w = rng.integers(-127, 128, (2, 5, 24, 16)).astype(np.int8)
    for x in (rng.normal(size=(n, 24)), rng.normal(size=(2, 1, n, 24))):
        np.testing.assert_allclose(matmul(x, w), x @ w.astype(float), atol=1e-10)
        y = np.full((2, 5, n, 16), np.nan)
        assert matmul(x, w, out=y) is y
        np.testing.assert_allclose(y, x @ w.astype(float), atol=1e-10)


@needs_small_kernels
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "m"), [(64, 64), (768, 64), (512, 64), (1600, 64), (333, 48)])
def test_a_row_is_the_same_among_any_others(k, m, dtype):
    """For up to 40 rows and some larger numbers, at any position, in any order."""
    rng = np.random.default_rng(k)
    x = rng.normal(size=(150, k)).astype(dtype)
    w = rng.normal(size=(5, k, m)).astype(dtype)
    alone = np.concatenate([matmul(row[None], w) for row in x], axis=1)
    for n in [*range(1, 41), 64, 65, 100, 150]:
        for start in {0, 1, 7, 150 - n}:
            np.testing.assert_array_equal(
                matmul(x[start : start + n], w), alone[:, start : start + n][:, :n], f"{n} rows"
            )
    order = rng.permutation(150)
    np.testing.assert_array_equal(matmul(x[order], w), alone[:, order])


@needs_small_kernels
@pytest.mark.parametrize("k", [1, 63, 64, 65, 300, 1024])
def test_zeros_at_the_end_change_nothing(k):
    """A masked pattern may be longer than the keys that its query sees."""
    rng = np.random.default_rng(k)
    x, w = rng.normal(size=(8, k)).astype(np.float32), rng.normal(size=(1100, 64)).astype("f4")
    longer = np.concatenate([x, np.zeros((8, 1100 - k), np.float32)], axis=1)
    np.testing.assert_array_equal(matmul(longer, w), matmul(x, w[:k]))


@needs_small_kernels
def test_threads_make_no_difference(monkeypatch):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(9, 768)).astype("f4"), rng.normal(size=(12, 768, 64)).astype("f4")
    one = matmul(x, w)
    monkeypatch.setattr(module, "MIN_SHARED_WORK", 0)
    for threads in (1, 2, 3, 5):
        monkeypatch.setattr(module, "python_threads", lambda threads=threads: threads)
        np.testing.assert_array_equal(matmul(x, w), one)


@pytest.mark.parametrize("k", [130, 192, 384])
@pytest.mark.parametrize(
    "order", ["C"] if small_kernels() else ["C", "F"]
)  # as matrices are packed
def test_a_share_of_the_columns_has_the_bits_of_the_whole_product_of_few_rows(k, order):
    """So the number of ranks, which `auto` measures, does not change the text of one sequence."""
    if not blas() or blas().core == "MKL" or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not known of this BLAS")
    rng = np.random.default_rng(k)
    for m in (48, 768, 2304):
        w = rng.normal(size=(k, m)).astype(np.float32, order=order)
        for n in range(1, module.MAX_SPLIT_ROWS + 1):
            x = rng.normal(size=(n, k)).astype(np.float32)
            with single_threaded_blas():
                whole = matmul(x, w)
                parts = [matmul(x, w[:, cut]) for cut in even_slices(m, 3)]
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_sums(dtype):
    """Also after a longer row, whose matrix is kept."""
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 700), (5, 1), (1, 4, 2000), (7, 64)):
        x = rng.random(shape).astype(dtype)
        sums = row_sums(x)
        assert sums.dtype == dtype and sums.shape == (*shape[:-1], 1)
        exact = x.astype(np.longdouble).sum(-1, keepdims=True)
        np.testing.assert_allclose(sums, exact, rtol=2.5 * np.finfo(dtype).eps)
