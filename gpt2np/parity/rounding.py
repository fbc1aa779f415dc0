"""Rounding errors: their size in each dtype, and what tells them from mistakes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array

_FLOOR = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-40}
DTYPES = tuple(_FLOOR)  # the narrowest first
WIDE_DTYPES = DTYPES[2:]

_ELEMENTWISE = ("embed", "resid_mid", "mlp.act", "resid")  # steps without sums
_MIN_ROW_SIGNIFICANCE = 6  # of a mistake within rounding errors, in standard deviations
MAX_UNEXPLAINED_SHARE = 0.25  # of an error; other mistakes correlate with it, but explain little


def floor(dtype: str, point: str, config: GPT2Config) -> float:
    """Return the least tolerance: in float32, twice the error of adding n numbers one by one.

    This error grows as √n. BLAS adds in a more accurate order than such a loop.
    """
    step = point.split(".", 2)[-1]  # blocks.3.mlp.out → mlp.out
    if dtype != "float32" or step in _ELEMENTWISE:
        return _FLOOR[dtype]
    n = config.n_inner if step == "mlp.out" else config.n_embd
    return max(_FLOOR[dtype], 2.0**-23 * float(np.sqrt(n)))


def _rms(x: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x * x)))


def distance(x: Array, right: Array) -> float:
    """Return the root mean square of x - right, relative to that of `right`."""
    error = float(_rms(x - right) / (_rms(right) or 1.0))
    return error if np.isfinite(error) else np.inf


def is_hidden(x: Array, right: Array, wrong: Array) -> bool:
    """Tell whether rounding errors of x contain the difference of `wrong` from `right`.

    The least-squares factor of (wrong - right) in (x - right) must be about 1, beyond chance.
    Samples are rows: one number may scale all errors of a row, as in layer norm.
    """
    error, effect = ((array - right).reshape(-1, x.shape[-1]) for array in (x, wrong))
    products, squares = (error * effect).sum(-1), (effect * effect).sum(-1)
    factor = products.sum() / squares.sum()
    noise = np.linalg.norm(products - factor * squares) / squares.sum()
    is_significant = len(error) > 3 and factor > _MIN_ROW_SIGNIFICANCE * noise
    return bool(abs(factor - 1) < 0.1 and is_significant)


def has_common_change(x: Array, right: Array) -> bool:
    """Return whether a factor and a shift of all numbers explain most of an error.

    Rounding errors differ from row to row. Of a single row, rounding may change all numbers alike.
    """
    error, centered = x - right, right - right.mean()
    factor = float((centered * error).sum() / (centered * centered).sum())
    shift = float(error.mean() - factor * right.mean())
    rest = _rms(error - factor * right - shift)
    return x.shape[-2] > 3 and rest < MAX_UNEXPLAINED_SHARE * _rms(error)


def round_to(x: Array, dtype: str) -> Array:
    """Round to a dtype and back; bfloat16 to nearest even, as in `transformers`."""
    if dtype != "bfloat16":
        return x.astype(dtype).astype(x.dtype)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(x.dtype)


def recognized_dtype(arrays: Sequence[Array]) -> str:
    """Return the narrowest of `DTYPES` that holds all numbers of the arrays."""

    def holds(dtype: str) -> bool:
        return all(np.array_equal(round_to(x, dtype), x, equal_nan=True) for x in arrays)

    return next(filter(holds, DTYPES))
