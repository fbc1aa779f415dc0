"""Functions and products of float64 with the same bits on every machine.

IEEE 754 rounds +, −, ×, ÷ and √ correctly, and so does every processor. BLAS, `np.exp` and `np.sum`
choose other orders or other polynomials by instruction set. These functions use elementwise IEEE
operations in a fixed order, and matrix products of integers below 2⁵³, which no order can round:
the Ozaki scheme (Ozaki et al. 2012) splits each matrix into slices of such integers.
docs/guide/check_your_engine.md defines every function precisely enough to write it elsewhere.

Shape letters: n rows; k inputs and m outputs of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.threads import even_slices, parallel_for

BLOCK = 1024
"""The most inputs of one integer product: 2 · 1024 · 2²¹ · 2²¹ = 2⁵³, the last exact integer."""

_LO_UNIT = 2.0**-22  # of the low slice, in units of the high slice
_CHUNK = 8192  # numbers of an elementwise function
_OUTPUTS = 128  # of a matrix converted to float64 at a time, so that they stay in the cache

_LN2 = float.fromhex("0x1.62e42fefa39efp-1")  # math.log depends on the C library
_LN2_HI = float.fromhex("0x1.62e42fefa2000p-1")  # 40 bits, so that k · _LN2_HI is exact
_LN2_LO = float.fromhex("0x1.9ef35793c7673p-41")
_EXP = [1 / math.factorial(n) for n in range(13, 0, -1)]  # Taylor, the highest power first
_LOG = [1 / (2 * n + 1) for n in range(11, 0, -1)]
_ERF = [2 / (2 * n + 1) for n in range(100, 0, -1)]


def _chunked(function: Callable[[Array], Array]) -> Callable[..., Array]:
    """Let an elementwise function work on chunks that stay in the cache, and write to `out`."""

    @wraps(function)
    def on_chunks(x: Array, out: Array | None = None) -> Array:
        chunks = np.split(np.ravel(x), range(_CHUNK, x.size, _CHUNK))
        y = np.concatenate([function(chunk) for chunk in chunks]).reshape(x.shape)
        if out is None:
            return y
        out[...] = y
        return out

    return on_chunks


def _reduce(x: Array) -> tuple[Array, Array]:
    """Return k and m with eˣ = 2ᵏ · (1 + m), for -746 ≤ x ≤ 709.

    Proof: r = x - k·ln 2 is at most 0.347, since k = rint(x / ln 2). k·_LN2_HI is exact, and the
    two parts of ln 2 are wrong by 2⁻⁹³. Taylor's remainder r¹⁴/14! is below 5e-18, 2⁻⁵⁷.
    """
    k = np.rint(x * (1 / _LN2))
    r = x - k * _LN2_HI
    r -= k * _LN2_LO
    m = r * _EXP[0]
    for coefficient in _EXP[1:-1]:  # Horner's scheme
        m += coefficient
        m *= r
    m *= r
    m += r
    return k, m


def _power_of_two(k: Array) -> Array:
    """Return 2ᵏ for whole numbers k, -1022 to 1023, by writing the exponent's bits."""
    with np.errstate(invalid="ignore"):  # NaN, whose product stays NaN
        bits: Array = (k.astype(np.int64) + 1023) << 52
    return bits.view(np.float64)


@_chunked
def exp(x: Array) -> Array:
    """Return eˣ; infinity above 709.

    Proof: `_reduce`, then one rounding in 1 + m; the product with 2ᵏ is exact. So the error is
    below 1 unit in the last place (tests/unit/kernels/test_exact_arithmetic.py measures 0.9).
    """
    k, m = _reduce(np.minimum(np.maximum(x, -746.0), 709.0))
    m += 1
    normal = np.maximum(k, -1000.0)
    m *= _power_of_two(normal)
    m *= _power_of_two(k - normal)  # below 2⁻¹⁰²², the only step that rounds
    m[x > 709] = math.inf
    return m


@_chunked
def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent.

    Proof: tanh |x| = -t / (t + 2) for t = e^(-2|x|) - 1 = (2ᵏ - 1) + 2ᵏ·m, with m of `_reduce`.
    For k = 0, t = m has a relative error below 2⁻⁵¹; for k < 0, |t| is above ¼.
    """
    k, m = _reduce(np.maximum(np.abs(x) * -2, -80.0))
    power = _power_of_two(k)
    t = (power - 1) + power * m
    result: Array = np.copysign(t / (t + 2), x)
    return result


@_chunked
def erf(x: Array) -> Array:
    """Return the error function.

    Proof: erf x = 2/√π · e^(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!, whose terms have one sign, so rounding
    stays below 1e-14. From |x| = 5.8 on, 1 - |erf x| < 2.4e-16; there the terms after n = 100 are
    below 1e-18 of the sum.
    """
    z = np.minimum(np.abs(x), 5.8)
    square = z * z
    total = np.ones_like(z)
    for coefficient in _ERF:  # 1 + 2x²/3 · (1 + 2x²/5 · (…))
        total *= square * coefficient
        total += 1
    total *= z * (2 / math.sqrt(math.pi))
    total *= exp(-square)
    result: Array = np.copysign(np.where(z == 5.8, 1.0, total), x)
    return result


def log(x: Array) -> Array:
    """Return the natural logarithm of positive numbers.

    Proof: x = 2ᵏ·f with √½ ≤ f < √2. With s = (f - 1) / (f + 1), log f = 2·(s + s³/3 + …). f - 1 is
    exact, and |s| < 0.172, so the terms after s²³ are below 1e-19 of the first.
    """
    f, k = np.frexp(np.asarray(x, np.float64))
    is_small = f < math.sqrt(0.5)
    f, k = np.where(is_small, f * 2, f), np.where(is_small, k - 1, k).astype(np.float64)
    s = (f - 1) / (f + 1)
    square = s * s
    series = np.zeros_like(s)
    for coefficient in _LOG:
        series += coefficient
        series *= square
    result: Array = k * _LN2_HI + (2 * s + (2 * s * series + k * _LN2_LO))
    return result


def row_sums(x: Array) -> Array:
    """Sum each row of x (…, n) by halves. Returns (…, 1).

    The second half, from the largest power of 2 below n on, is added to the first until one number
    is left. So the order is fixed, and zeros at the end change nothing.
    """
    while (n := x.shape[-1]) > 1:
        half = 1 << (n - 1).bit_length() - 1
        first = x[..., :half].copy()
        first[..., : n - half] += x[..., half:]
        x = first
    return x


class Slices(NamedTuple):
    """Two slices of the Ozaki scheme: (hi + lo · 2⁻²²) · scale, with integers |hi|, |lo| ≤ 2²¹.

    `scale` holds powers of 2 along one axis. The largest number of the axis keeps 44 bits.
    """

    hi: Array
    lo: Array
    scale: Array


def to_slices(x: Array, axis: int) -> Slices:
    """Split x into slices with one scale along `axis`, 2ᵉ⁻²¹ for the least 2ᵉ above all |x|.

    Proof: x / scale is exact and at most 2²¹, so rint leaves at most ½, exactly; times 2²² that is
    at most 2²¹, and the second rint is wrong by ½ · 2⁻²² · scale = 2ᵉ⁻⁴⁴. e is at least -900.
    """
    largest = np.maximum.reduce(np.abs(x), axis, keepdims=True)
    exponent = np.maximum(np.frexp(largest)[1], -900) - 21
    lo = x * np.ldexp(1.0, -exponent)
    hi = np.rint(lo)
    lo -= hi
    lo *= 1 / _LO_UNIT
    return Slices(hi, np.rint(lo, out=lo), np.ldexp(1.0, exponent))


def _multiply(x: Slices, w: Slices, out: Array | None = None) -> Array:
    """Multiply slices of x (…, n, k) by slices of w (…, k, m), k ≤ BLOCK. Returns (…, n, m).

    Proof: each sum, and hi·lo + lo·hi, has integers of at most 2⁵³, so BLAS rounds nothing. lo·lo,
    at most ¼ · scales, is omitted; with both roundings, the error is at most 3·k·2⁻⁴⁴·2ᵉ·2ᶠ.
    """
    y = np.matmul(x.hi, w.lo)
    y += np.matmul(x.lo, w.hi)
    y *= _LO_UNIT
    y += np.matmul(x.hi, w.hi)
    y *= x.scale * w.scale
    result: Array = np.add(y, 0.0, out=out)  # no -0, which depends on BLAS
    return result


def matmul(x: Array, w: Array, out: Array | None = None) -> Array:
    """Multiply x (…, n, k) by w (…, k, m), k ≤ BLOCK: each number depends on its row and column."""
    return _multiply(to_slices(x, -1), to_slices(w, -2), out)


def weighted_rows(x: Array, w: Array) -> Array:
    """Multiply x (…, n, k) by w (…, k, m) as `matmul`; where x is 0, w's row has no influence.

    Each row of w has a scale of its own, and their scales multiply x: exact powers of 2.
    """
    rows = to_slices(w, -1)
    scaled = x * rows.scale.swapaxes(-1, -2)
    return _multiply(to_slices(scaled, -1), rows._replace(scale=np.ones(())))


@dataclass(frozen=True)
class ExactLinear:
    """A linear layer: blocks of at most BLOCK inputs, as slices in float32 (m, k); bias (m,).

    A row has the weights of one output, so that a few rows are read and converted in one piece.
    """

    blocks: list[Slices]
    bias: Array | None

    @classmethod
    def of(cls, weight: Array, bias: Array | None = None) -> ExactLinear:
        """Cut a weight matrix (out, in); each block and output has one scale."""
        blocks = []
        for start in range(0, weight.shape[1], BLOCK):
            inputs = weight[:, start : start + BLOCK]
            hi, lo = np.empty(inputs.shape, np.float32), np.empty(inputs.shape, np.float32)
            scale = np.empty((len(weight), 1))
            for rows in _output_slices(len(weight)):
                hi[rows], lo[rows], scale[rows] = to_slices(inputs[rows], 1)
            blocks.append(Slices(hi, lo, scale))
        return cls(blocks, bias)


def linear(x: Array, w: ExactLinear, then: Callable[[Array], Array] | None = None) -> Array:
    """Compute x @ matrix + bias for x (n, in); then `then`. Threads share columns.

    The products of the blocks are added in ascending order.
    """
    inputs = [to_slices(x[:, i * BLOCK : (i + 1) * BLOCK], -1) for i in range(len(w.blocks))]
    y = np.zeros((len(x), len(w.blocks[0].hi)))

    def multiply(part: slice) -> None:
        for cut_x, block in zip(inputs, w.blocks, strict=True):
            y[:, part] += _multiply(cut_x, Slices(*(a[part].astype(np.float64).T for a in block)))

    parallel_for(multiply, _output_slices(y.shape[1]), python_threads())
    if w.bias is not None:
        y += w.bias
    return then(y) if then else y


def _output_slices(n: int) -> list[slice]:
    return even_slices(n, -(-n // _OUTPUTS))
