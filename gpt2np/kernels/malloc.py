"""What happens to the memory of arrays that are let go of."""

from contextlib import suppress

import numpy as np

_LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc learns from nothing larger than 32 MiB


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of what a thread frees, for the arrays that follow.

    It gives back to the system what is free beyond twice the largest array that was ever freed. At
    first that is little, and a pass of many rows waits for its memory anew in every layer: 29,000
    page faults, a fifth of its time. So an array is freed here, which was never written: see
    M_MMAP_THRESHOLD in mallopt(3). What is kept has been in use at one time before.
    """
    with suppress(MemoryError):
        np.empty(_LARGEST, np.uint8)
