"""Memory that a process has in common with those that it forks later."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


class SharedMemory:
    """One range of addresses, which takes memory as it is written, and arrays cut from it.

    Only the process that made it may ask for arrays. It gives an array's memory back to the system
    when that is gone; others have no array there but by its place.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, _pages(size))
        self._free = [(0, _pages(size))]  # (start, stop), in their order
        self._gone: deque[tuple[int, int]] = deque()  # to be free; a finalizer can't take the lock
        self._lock = threading.Lock()
        self._process = os.getpid()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """An array, and where it is; None if there is no room."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            while self._gone:
                self._free = _joined([*self._free, self._gone.popleft()])
            holes = ((start, stop) for start, stop in self._free if stop - start >= size)
            if (hole := next(holes, None)) is None:
                return None
            start, stop = hole[0], hole[0] + _pages(size)
            self._free[self._free.index(hole)] = stop, hole[1]
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        let_go = partial(_let_go, self._memory, self._gone, (start, stop), self._process)
        weakref.finalize(flat, let_go).atexit = False
        return flat.reshape(shape), start

    def at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """The same array in a process that was forked since."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)


def _let_go(
    memory: mmap.mmap, gone: deque[tuple[int, int]], place: tuple[int, int], process: int
) -> None:
    if os.getpid() == process:
        start, stop = place
        with suppress(OSError):  # as of locked memory, which is not used again
            memory.madvise(mmap.MADV_REMOVE, start, stop - start)  # it is zeros then
            gone.append(place)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places in their order, neighbours as one, none empty."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        if stop > start:
            joined.append((start, stop))
    return joined


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
