"""Memory that a process shares with the workers that it forks later."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array

Range = tuple[int, int]  # start, stop


class SharedMemory:
    """An allocator of arrays in one range of shared memory.

    The range takes memory only where arrays have been written. Only the process that made the
    object may allocate. Up to `max_kept` bytes of freed memory are kept for later arrays: page
    faults would take a fifth of a short prompt's time, and far more in a virtual machine.

    Raises:
        OSError: the system does not provide the range.
    """

    def __init__(self, size: int, max_kept: int) -> None:
        self.max_kept = max_kept
        self._memory = mmap.mmap(-1, _whole_pages(size))
        self._memory.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)  # fails early where unsupported
        self._zeros: list[Range] = [(0, _whole_pages(size))]
        self._kept: list[Range] = []
        # Finalizers append freed ranges to this queue, because they can't take the lock.
        self._freed: deque[tuple[Range, bool]] = deque()
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """Allocate an array of zeros.

        Returns the array and its byte offset, or None if no free range is large enough.
        """
        size = _whole_pages(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            self._collect_freed()
            kept = _take(self._kept, size)
            start = _take(self._zeros, size) if kept is None else kept
            if start is None:
                self._release_kept()
                start = _take(self._zeros, size)
            if start is None:
                return None
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        weakref.finalize(
            flat, partial(self._free, (start, start + size), os.getpid())
        ).atexit = False
        if kept is not None:
            flat[...] = 0
        return flat.reshape(shape), start

    def array_at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the array at an offset that `zeros` returned; workers call this method."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)

    def _free(self, memory: Range, process: int) -> None:
        if os.getpid() == process:
            start, stop = memory
            keep = self._kept_bytes(memory) <= self.max_kept
            with suppress(OSError):  # locked memory can't be released; its range is lost
                if not keep:
                    self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)
                self._freed.append((memory, keep))

    def _kept_bytes(self, memory: Range) -> int:
        freed = [freed for freed, keep in self._freed.copy() if keep]
        return sum(stop - start for start, stop in (memory, *freed, *self._kept))

    def _collect_freed(self) -> None:
        while self._freed:
            memory, keep = self._freed.popleft()
            ranges = self._kept if keep else self._zeros
            ranges[:] = _merge_ranges([*ranges, memory])

    def _release_kept(self) -> None:
        for start, stop in self._kept:
            self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)
        self._zeros = _merge_ranges([*self._zeros, *self._kept])
        self._kept = []


def _take(ranges: list[Range], size: int) -> int | None:
    """Take `size` bytes from the smallest free range that fits; return the start, or None."""
    large_enough = [
        (stop - start, i) for i, (start, stop) in enumerate(ranges) if stop - start >= size
    ]
    if not large_enough:
        return None
    _, i = min(large_enough)
    start, stop = ranges[i]
    ranges[i : i + 1] = [(start + size, stop)] if stop - start > size else []
    return start


def _merge_ranges(ranges: list[Range]) -> list[Range]:
    """Sort ranges, and join ranges that touch."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, stop))
    return merged


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
