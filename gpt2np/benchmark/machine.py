"""Description of this machine, and its limits: memory bandwidth and matrix multiplication speed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np import __version__
from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import describe_kernels

_MAX_READ_BYTES = 512_000_000  # far more than any CPU cache; reading more is not slower per byte
_MATRIX_COLUMNS = 4096  # in the test of vector-matrix products; about as many as in a model
_MATMUL_SIZE = 2048


@dataclass(frozen=True)
class SpeedLimits:
    """Speed limits of the machine, measured with the model's dtype and number of threads."""

    bytes_per_second: float  # memory bandwidth when reading `bytes_read` repeatedly
    bytes_read: int  # per repetition; equals the weights read per token, for equal cache effects
    flops_per_second: float  # throughput of a product of two large square matrices

    def best_of(self, other: SpeedLimits) -> SpeedLimits:
        """Combine two measurements of as many bytes: return the higher value of each limit."""
        return SpeedLimits(*map(max, astuple(self), astuple(other)))


def describe_machine(threads: int) -> dict[str, Any]:
    """Describe this machine and its software; `threads` is the number of threads per matmul."""
    return {
        "cpu": _cpu_name(),
        "cpus": os.cpu_count() or 1,  # logical CPUs
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpt2np": __version__,
        "blas": blas_name(),
        "kernels": describe_kernels(),
        "threads": threads,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # of the last minute
    }


def blas_name() -> str:
    """Return the name of NumPy's BLAS, e.g. "scipy-openblas 0.3.31", or "unknown"."""
    try:
        config: Any = np.show_config(mode="dicts")  # type: ignore[call-overload,unused-ignore]
        blas = config["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas.get('version', '')}".strip()
    except (TypeError, KeyError):  # this NumPy lacks the mode "dicts", or names no BLAS
        return "unknown"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def measure_limits(nbytes: int, threads: int, dtype: DTypeLike, effort: Effort) -> SpeedLimits:
    """Measure memory bandwidth and matmul throughput.

    The bandwidth tests read `nbytes` bytes, at most _MAX_READ_BYTES. `effort` applies to each of
    the four tests: three of bandwidth and one of matmul.
    """
    matrix = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), dtype)
    data = np.ones(max(1, min(nbytes, _MAX_READ_BYTES) // matrix.itemsize), dtype)
    product, operations = np.empty_like(matrix), 2 * _MATMUL_SIZE**3
    bytes_per_second = read_bandwidth(data, threads, effort)
    flops = _rate(operations, lambda: np.dot(matrix, matrix, out=product), effort)
    return SpeedLimits(bytes_per_second, data.nbytes, flops)


def read_bandwidth(data: Array, threads: int, effort: Effort) -> float:
    """Measure the bandwidth of memory reads in bytes per second.

    Returns the highest bandwidth of three operations: np.max on several threads, a dot product, and
    a vector-matrix product as in decoding. Which is fastest depends on the machine and the BLAS.
    """
    slices = np.array_split(data, min(threads, len(data)))
    columns = min(_MATRIX_COLUMNS, len(data))
    matrix = data[: len(data) // columns * columns].reshape(-1, columns)
    row = np.ones(len(matrix), data.dtype)
    result = np.empty(columns, data.dtype)
    with ThreadPoolExecutor(threads) as pool:
        return max(
            _rate(data.nbytes, lambda: list(pool.map(np.max, slices)), effort),
            _rate(data.nbytes, lambda: np.dot(data, data), effort),
            _rate(matrix.nbytes, lambda: np.dot(row, matrix, out=result), effort),
        )


def _rate(amount: int, work: Callable[[], object], effort: Effort) -> float:
    return amount / repeat(work, effort).fastest
