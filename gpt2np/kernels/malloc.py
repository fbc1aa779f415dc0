"""Settings of the C library's allocator."""

from contextlib import suppress

import numpy as np

_MAX_THRESHOLD = (32 << 20) - (64 << 10)  # bytes; freeing a larger block has no effect


def raise_mmap_threshold() -> None:
    """Let glibc keep up to 64 MiB of freed memory per thread for later arrays.

    By default, glibc returns most of the freed memory to the system. The page faults of new arrays
    then take a fifth of a long prompt's time. Freeing one large array raises glibc's threshold
    (M_MMAP_THRESHOLD in mallopt(3)). The array is never written, so it takes no memory.
    """
    with suppress(MemoryError):
        np.empty(_MAX_THRESHOLD, np.uint8)
