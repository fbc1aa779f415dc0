"""Types of arrays, their memory, checks of arrays and lists."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def real_array(value: object, like: Array) -> Array:
    """Return what the caller's code returned as an array with the shape and dtype of `like`.

    Raises:
        ValueError: the value has another shape, or is not real numbers.
    """
    array = np.asarray(value)
    if array.shape != like.shape or array.dtype.kind not in "iuf":
        raise ValueError(f"{array.dtype} of shape {array.shape}")
    with np.errstate(over="ignore"):  # infinity is reported with the logits
        result: Array = array.astype(like.dtype, copy=False)
    return result


def as_list(value: object) -> list[Any] | None:
    """Return the items of a list, tuple, array or Series; None for another value, such as a text.

    The items of arrays are Python numbers and strings, or lists for more than one dimension.
    """
    if isinstance(value, (str, bytes, bytearray)):
        return None
    if hasattr(value, "__array__"):
        items = np.asarray(value).tolist()
        return items if isinstance(items, list) else None
    return list(value) if isinstance(value, Sequence) else None


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many items two sequences have in common at the start."""
    differences = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differences, min(len(a), len(b)))


def raise_mmap_threshold() -> None:
    """Let glibc keep up to 64 MiB of freed memory per thread for later arrays.

    By default, glibc returns most of the freed memory to the system. The page faults of new arrays
    then take a fifth of a long prompt's time. Freeing one large array raises glibc's threshold
    (M_MMAP_THRESHOLD in mallopt(3)). The array is never written, so it takes no memory.
    """
    with suppress(MemoryError):
        np.empty((32 << 20) - (64 << 10), np.uint8)  # freeing more has no effect
