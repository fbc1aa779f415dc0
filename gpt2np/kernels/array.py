"""Type aliases for NumPy arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
