"""What this machine is, and what it could do at most: read, and multiply."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np import __version__
from gpt2np.benchmark.timing import Effort, repeat

Array = NDArray[Any]

_MOST_READ = 512_000_000  # bytes; far beyond every cache, so that more would not be slower
_COLUMNS = 4096  # of the matrix that is read, about as wide as a model's
_PRODUCT_SIDE = 2048


@dataclass(frozen=True)
class Machine:
    """Where and with what something was measured.

    Attributes:
        cpu: the processor's name.
        cpus: how many the machine has.
        system: operating system and architecture.
        python, numpy, gpt2np: versions.
        blas: name and version of the library that NumPy's products come from, "unknown" if NumPy
            doesn't tell.
        threads: how many its products may use.
        load: processes that wanted a CPU in the minute before; None where the system doesn't tell.
    """

    cpu: str
    cpus: int
    system: str
    python: str
    numpy: str
    gpt2np: str
    blas: str
    threads: int
    load: float | None


@dataclass(frozen=True)
class Limits:
    """What the machine reached with the same threads and dtype as the model.

    Attributes:
        bytes_per_second: reading `bytes_read` again and again.
        bytes_read: as much as the model reads for a token, so that both are in the same caches.
        flops_per_second: in the product of two large square matrices.
    """

    bytes_per_second: float
    bytes_read: int
    flops_per_second: float

    def or_better(self, other: Limits) -> Limits:
        """The better of two measurements: a limit is what was reached once."""
        return Limits(
            max(self.bytes_per_second, other.bytes_per_second),
            self.bytes_read,
            max(self.flops_per_second, other.flops_per_second),
        )


def describe_machine(threads: int) -> Machine:
    """This machine and its software; `threads` is told, not found out."""
    return Machine(
        cpu=_cpu_name(),
        cpus=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
        gpt2np=__version__,
        blas=blas_name(),
        threads=threads,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def blas_name() -> str:
    """Name and version of NumPy's BLAS, as in "scipy-openblas 0.3.31"."""
    try:
        told: Any = np.show_config(mode="dicts")  # type: ignore[call-overload,unused-ignore]
        blas = told["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas.get('version', '')}".strip()
    except (TypeError, KeyError):  # some builds know no such mode, or name no BLAS
        return "unknown"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def measure_limits(nbytes: int, threads: int, dtype: DTypeLike, effort: Effort) -> Limits:
    """Read as much as `nbytes`, and multiply. `effort` is for each of four measurements."""
    side = np.ones((_PRODUCT_SIDE, _PRODUCT_SIDE), dtype)
    data = np.ones(max(1, min(nbytes, _MOST_READ) // side.itemsize), dtype)
    return Limits(
        read_bandwidth(data, threads, effort), data.nbytes, product_flops(side, side, effort)
    )


def read_bandwidth(data: Array, threads: int, effort: Effort) -> float:
    """Bytes per second at which `data` (one axis) can be read.

    Which way is the fastest depends on the machine and on the BLAS, so it is the fastest of three:
    the greatest number, a part for each thread; the product of the vector with itself; and that of
    a row with a matrix, which is what decoding does.
    """
    parts = np.array_split(data, min(threads, len(data)))
    columns = min(_COLUMNS, len(data))
    matrix = data[: len(data) // columns * columns].reshape(-1, columns)
    row = np.ones(len(matrix), data.dtype)
    result = np.empty(columns, data.dtype)
    with ThreadPoolExecutor(threads) as pool:
        return max(
            _rate(data.nbytes, lambda: list(pool.map(np.max, parts)), effort),
            _rate(data.nbytes, lambda: np.dot(data, data), effort),
            _rate(matrix.nbytes, lambda: np.dot(row, matrix, out=result), effort),
        )


def product_flops(left: Array, right: Array, effort: Effort) -> float:
    """Floating-point operations per second in the product of two matrices (n, k) and (k, m)."""
    result = np.empty((len(left), right.shape[1]), left.dtype)
    operations = 2 * left.size * right.shape[1]
    return _rate(operations, lambda: np.dot(left, right, out=result), effort)


def _rate(amount: int, work: Callable[[], object], effort: Effort) -> float:
    return amount / repeat(work, effort).fastest
