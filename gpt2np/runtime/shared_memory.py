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
Range = tuple[int, int]  # start, stop


class SharedMemory:
    """One range of addresses, which takes memory as it is written, and arrays cut from it.

    Only the process that made it may ask for arrays. What it lets go of is given back to the
    system; but some of the memory of large arrays is kept for others, as a virtual machine can take
    longer to get new memory from its host than the pass that needs it takes.

    Attributes:
        large: bytes of an array that is.
        most: bytes that are kept.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, size: int, large: int, most: int) -> None:
        self.large, self.most = large, most
        self._memory = mmap.mmap(-1, _pages(size))
        self._memory.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)  # not every system can
        self._zeros: list[Range] = [(0, _pages(size))]
        self._kept: list[Range] = []
        self._gone: deque[tuple[Range, bool]] = deque()  # a finalizer can't take the lock
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """An array, and where it is; None if there is no room."""
        size = _pages(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            self._collect()
            kept = _cut(self._kept, size) if size >= self.large else None
            start = _cut(self._zeros, size) if kept is None else kept
            if start is None:
                self._give_back()
                start = _cut(self._zeros, size)
            if start is None:
                return None
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        place = start, start + size
        weakref.finalize(flat, partial(self._let_go, place, os.getpid())).atexit = False
        if kept is not None:
            flat[...] = 0
        return flat.reshape(shape), start

    def at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """The same array in a process that was forked since."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)

    def _let_go(self, place: Range, process: int) -> None:
        if os.getpid() == process:
            keep = place[1] - place[0] >= self.large and self._kept_bytes(place) <= self.most
            with suppress(OSError):  # as of locked memory, which is not used again
                if not keep:
                    self._memory.madvise(mmap.MADV_REMOVE, place[0], place[1] - place[0])
                self._gone.append((place, keep))

    def _kept_bytes(self, place: Range) -> int:
        gone = [some for some, keep in self._gone.copy() if keep]
        return sum(stop - start for start, stop in (place, *gone, *self._kept))

    def _collect(self) -> None:
        while self._gone:
            place, keep = self._gone.popleft()
            ranges = self._kept if keep else self._zeros
            ranges[:] = _joined([*ranges, place])

    def _give_back(self) -> None:
        """All that is kept."""
        for start, stop in self._kept:
            self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)
        self._zeros = _joined([*self._zeros, *self._kept])
        self._kept = []


def _cut(ranges: list[Range], size: int) -> int | None:
    """The start of the first that is large enough, which loses so much."""
    for number, (start, stop) in enumerate(ranges):
        if stop - start >= size:
            ranges[number : number + 1] = [(start + size, stop)] if stop - start > size else []
            return start
    return None


def _joined(ranges: list[Range]) -> list[Range]:
    """The same places in their order, neighbours as one."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
