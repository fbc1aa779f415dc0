"""NumPy's BLAS library: its thread count, its kernels, and how matrices are stored for them.

The thread count of OpenBLAS and MKL can be set. Any other library keeps its thread count, and
products run on one Python thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from gpt2np.kernels.threads import thread_count

_WITH_SMALL_KERNELS = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # OpenBLAS's AVX-512 cores
_OPENBLAS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@dataclass(frozen=True)
class Blas:
    """Functions and properties of a BLAS library."""

    get_threads: Callable[[], int]  # per product in this process
    set_threads: Callable[[int], object]
    core: str  # the processor type that OpenBLAS selects its kernels by, or "MKL"


@cache
def blas() -> Blas | None:
    """Return NumPy's BLAS if it is OpenBLAS or MKL, else None."""
    with suppress(AttributeError, ImportError, OSError):
        for library in _libraries():
            for pattern in _OPENBLAS:
                with suppress(AttributeError):
                    core_name = getattr(library, pattern.format("get_corename"))
                    core_name.restype = ctypes.c_char_p
                    get_threads = getattr(library, pattern.format("get_num_threads"))
                    set_threads = getattr(library, pattern.format("set_num_threads"))
                    return Blas(get_threads, set_threads, core_name().decode())
        return Blas(library.MKL_Get_Max_Threads, library.MKL_Set_Num_Threads, "MKL")
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    """Yield the libraries in which BLAS's functions can be looked up."""
    extension = Path(str(import_module("numpy._core._multiarray_umath").__file__))
    if sys.platform == "win32":
        # A look-up in NumPy's extension finds no function of the DLLs that the extension needs.
        for file in sorted(extension.parents[2].glob("numpy.libs/*openblas*.dll")):
            yield ctypes.CDLL(str(file))
    yield ctypes.CDLL(str(extension))


@cache
def small_kernels() -> bool:
    """Tell whether BLAS has small-matrix kernels, which compute each row independently.

    Small-matrix kernels, here of float32 and float64, compute products of up to a million
    multiplications, and read their operands in place.
    """
    library = blas()
    return library is not None and library.core in _WITH_SMALL_KERNELS


@cache
def halves_long_sums() -> bool:
    """Tell whether GEMM cuts sums of 321 to 640 products into two halves (OpenBLAS on AVX2)."""
    library = blas()
    return library is not None and library.core in ("Haswell", "Zen") and not small_kernels()


@cache
def python_threads() -> int:
    """Return how many Python threads share a product; 1 if BLAS's threads can't be turned off."""
    return thread_count() if blas() else 1


_lock = threading.RLock()  # a finalizer or signal handler may interrupt a thread with the lock
_users = 0
_threads_before = 0  # not known yet


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Set BLAS to one thread during the `with` block, in the whole process.

    Idle BLAS threads spin, and would slow down the Python threads that share the work. If `with`
    blocks of several threads overlap, the last block to end restores the previous thread count.
    """
    global _users, _threads_before
    library = blas()
    if library is None:
        yield
        return
    is_counted, process = False, os.getpid()
    try:
        with _lock:
            _users, is_counted = _users + 1, True  # at once, in case Ctrl-C interrupts the block
            if _users == 1:
                _threads_before = library.get_threads()
                library.set_threads(1)
        yield
    finally:
        with _lock:
            is_counted &= os.getpid() == process  # a forked child has no users
            _users -= is_counted
            if is_counted and _users == 0 and _threads_before:
                library.set_threads(_threads_before)


def _reset_after_fork() -> None:
    """Restore BLAS's thread count in a forked child, where no `with` block will restore it."""
    global _lock, _users
    _lock = threading.RLock()
    library = blas() if _users else None
    _users = 0
    if library is not None:
        library.set_threads(_threads_before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
