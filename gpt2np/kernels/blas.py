"""The library that NumPy's products come from, as far as their speed depends on knowing it.

Nothing here is required: of a library that isn't recognized only the results are relied on.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from gpt2np.kernels.threads import threads_in_use

_WITH_SMALL_KERNELS = {"skylakex", "cooperlake", "sapphirerapids"}  # OpenBLAS's names of AVX-512
_OPENBLAS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@dataclass(frozen=True)
class Blas:
    """What a process can ask its BLAS library.

    Attributes:
        get_threads, set_threads: how many threads one product may use, in the whole process.
        small_kernels: whether small products of float32 and float64 (m·n·k up to a million) take a
            path of their own that reads the operands where they are. OpenBLAS's does on AVX-512.
    """

    get_threads: Callable[[], int]
    set_threads: Callable[[int], object]
    small_kernels: bool


@cache
def blas() -> Blas | None:
    """NumPy's BLAS, found by the names that OpenBLAS and MKL give their functions; else None."""
    with suppress(AttributeError, ImportError, OSError):
        library = ctypes.CDLL(_numpy_module())
        for pattern in _OPENBLAS:
            if found := _openblas(library, pattern):
                return found
        return Blas(library.MKL_Get_Max_Threads, library.MKL_Set_Num_Threads, small_kernels=False)
    return None


def _numpy_module() -> str:
    return str(import_module("numpy._core._multiarray_umath").__file__)


def _openblas(library: ctypes.CDLL, pattern: str) -> Blas | None:
    with suppress(AttributeError):
        core_name = getattr(library, pattern.format("get_corename"))
        core_name.restype = ctypes.c_char_p
        return Blas(
            getattr(library, pattern.format("get_num_threads")),
            getattr(library, pattern.format("set_num_threads")),
            core_name().decode().lower() in _WITH_SMALL_KERNELS,
        )
    return None


@cache
def small_kernels() -> bool:
    """Whether products are made of small ones, each row's result being the same in any of them."""
    library = blas()
    return library is not None and library.small_kernels


@cache
def python_threads() -> int:
    """How many Python threads share a product: one, where the library's own can't be turned off."""
    return threads_in_use() if blas() else 1


_lock = threading.Lock()
_users = 0
_threads_before = 1


@contextmanager
def one_thread_each() -> Iterator[None]:
    """While this lasts every product runs on the Python thread that asks for it, if BLAS is known.

    The library's own threads would wait for each other in a loop, in the way of the Python threads
    that share the work here. The setting is the whole process's; the last to leave restores it.
    """
    global _users, _threads_before
    library = blas()
    if library is None:
        yield
        return
    with _lock:
        if _users == 0:
            _threads_before = library.get_threads()
            library.set_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                library.set_threads(_threads_before)


def _forget_users() -> None:
    """In a forked child only the thread that forked goes on, and it is in no product."""
    global _lock, _users
    _lock = threading.Lock()
    library = blas() if _users else None
    _users = 0
    if library is not None:
        library.set_threads(_threads_before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_users)
