"""Memory that a process shares with the workers that it forks later."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.kernels.array import Array


class SharedMemory:
    """An allocator of arrays in one range of shared memory, in blocks of 2ⁿ bytes.

    The range takes memory only where arrays have been written. Up to `max_kept` bytes of freed
    blocks keep their memory for later arrays: page faults would take a fifth of a short prompt's
    time, and far more in a virtual machine.

    Raises:
        OSError: the system does not provide the range.
    """

    def __init__(self, size: int, max_kept: int) -> None:
        self._memory = mmap.mmap(-1, size)
        self._memory.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)  # fails early where unsupported
        self.max_kept, self._unused = max_kept, 0  # the start of the part that was never used
        # The freed blocks of 2ⁿ bytes, with and without memory. Finalizers append to the lists
        # without the lock, which the thread that they interrupt may hold.
        self._kept: list[list[int]] = [[] for _ in range(64)]
        self._empty: list[list[int]] = [[] for _ in range(64)]
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, int] | None:
        """Return an array of zeros and its byte offset, or None if the range is used up."""
        nbytes = max(mmap.PAGESIZE, math.prod(shape) * np.dtype(dtype).itemsize)
        n = (nbytes - 1).bit_length()
        with self._lock:
            kept = self._kept[n].pop() if self._kept[n] else None
            start = kept if kept is not None else self._empty_block(n)
        if start is None:
            return None
        flat = np.frombuffer(self._memory, dtype, math.prod(shape), start)
        weakref.finalize(flat, self._free, start, n, os.getpid()).atexit = False
        if kept is not None:
            flat[...] = 0
        return flat.reshape(shape), start

    def _empty_block(self, n: int) -> int | None:
        if self._empty[n]:
            return self._empty[n].pop()
        start, end = self._unused, self._unused + (1 << n)
        if end > len(self._memory):
            return None
        self._unused = end
        return start

    def array_at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the array at an offset that `zeros` returned; workers call this method."""
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)

    def _free(self, start: int, n: int, process: int) -> None:
        if os.getpid() != process:
            return
        if sum(len(blocks) << i for i, blocks in enumerate(self._kept)) + (1 << n) <= self.max_kept:
            self._kept[n].append(start)
            return
        with suppress(OSError):  # locked memory can't be released; the block is lost
            self._memory.madvise(mmap.MADV_REMOVE, start, 1 << n)
            self._empty[n].append(start)
