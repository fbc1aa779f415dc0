"""This machine: its description, its limits of speed, and the memory of this process."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np import __version__
from gpt2np.kernels.blas import blas

_MAX_READ_BYTES = 512_000_000  # far more than any CPU cache; reading more is not slower per byte
_MATRIX_COLUMNS = 4096  # in the test of vector-matrix products; about as many as in a model
_MATMUL_SIZE = 2048


def describe_machine(threads: int) -> dict[str, Any]:
    """Describe this machine and its software; `threads` is the number of threads per matmul."""
    library = blas()
    return {
        "cpu": _cpu_name(),
        "cpus": os.cpu_count() or 1,  # logical CPUs
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpt2np": __version__,
        "blas": blas_name(),
        "kernels": library.core if library else "unknown",
        "threads": threads,
    }


def blas_name() -> str:
    """Return the name of NumPy's BLAS, e.g. "scipy-openblas 0.3.31", or "unknown"."""
    config: Any = np.show_config(mode="dicts")  # type: ignore[call-overload,unused-ignore]
    built_with = config["Build Dependencies"].get("blas", {})
    return f"{built_with.get('name', 'unknown')} {built_with.get('version', '')}".strip()


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def time_runs(work: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of each run of `work`, which is repeated for `seconds` seconds."""
    work()  # warm up
    runs: list[float] = []
    end = time.perf_counter() + seconds
    while not runs or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        runs.append(time.perf_counter() - start)
    return runs


def read_bandwidth(nbytes: int, threads: int, seconds: float) -> float:
    """Measure how fast memory is read, in bytes per second.

    Reads `nbytes` bytes (at most _MAX_READ_BYTES) with np.max on several threads and with a
    vector-matrix product, as decoding does. Returns the higher of the two bandwidths.
    """
    rows = max(1, min(nbytes, _MAX_READ_BYTES) // (4 * _MATRIX_COLUMNS))
    matrix = np.ones((rows, _MATRIX_COLUMNS), np.float32)
    row, slices = np.ones(rows, np.float32), np.array_split(matrix.reshape(-1), threads)
    with ThreadPoolExecutor(threads) as pool:
        runs = time_runs(lambda: list(pool.map(np.max, slices)), seconds)
    return matrix.nbytes / min(*runs, *time_runs(lambda: row @ matrix, seconds))


def matmul_flops(seconds: float) -> float:
    """Measure the floating-point operations per second of a product of float32 matrices."""
    matrix = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), np.float32)
    return 2 * _MATMUL_SIZE**3 / min(time_runs(lambda: matrix @ matrix, seconds))


def peak_memory() -> int | None:
    """Return the peak resident memory in bytes; None if the system does not report it.

    On Linux, the result is the peak of this process plus the current memory of the processes of
    `multiprocessing`, such as a model's workers. Pages that they share with this process count
    once. On other systems, they are not counted.
    """
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would include the parent process's peak
        text = status.read_text(encoding="utf-8", errors="replace")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024 + _worker_memory()
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _worker_memory() -> int:
    """Return the memory in bytes of the workers, without pages shared with this process."""
    workers = active_children()
    if not workers:
        return 0
    # Proportional set sizes of all processes, without the resident set of this process.
    processes = ["self", *(str(worker.pid) for worker in workers)]
    proportional = sum(_smaps_field(process, "Pss") for process in processes)
    return max(0, proportional - _smaps_field("self", "Rss"))


def _smaps_field(process: str, field: str) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return int(text.split(f"\n{field}:")[1].split()[0]) * 1024
