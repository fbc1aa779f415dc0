"""Type aliases for NumPy arrays, and the equality of dataclasses that hold arrays."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def equal_fields(a: Any, b: Any) -> bool:
    """Tell whether two dataclasses of one type have equal fields; arrays may contain NaN.

    For use as `__eq__`, because `==` of two arrays is an array.
    """
    if type(a) is not type(b):
        return False
    names = (field.name for field in fields(a) if field.compare)
    return all(_equal(getattr(a, name), getattr(b, name)) for name in names)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)
