"""A matrix in the order in which small products read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.matmul import LANES
from gpt2np.kernels.threads import in_parallel, split

Array = NDArray[Any]

_WORTH_SHARING = 100_000  # numbers; to wake a thread takes as long as to copy some of them


@dataclass(frozen=True)
class Panels:
    """A matrix [in, out] cut into panels that lie in memory one after another.

    Each product of some rows with a panel is a small one (`gpt2np.kernels.matmul`) that reads memory
    from one end to the other. Where the matrix ends within a panel, or a panel's width is no
    multiple of LANES, zeros follow.

    Attributes:
        data: (I, P, k, m): I groups of inputs by P groups of outputs.
        shape: (in, out).
        cut: the inputs and outputs of one panel without the zeros.
    """

    data: Array
    shape: tuple[int, int]
    cut: tuple[int, int]

    @classmethod
    def within(cls, room: Array, shape: tuple[int, int], cut: tuple[int, int]) -> Panels:
        """Panels of a matrix of that shape in `room`, (panels_size(shape, cut),), to be filled."""
        return cls(room.reshape(_panels_shape(shape, cut)), shape, cut)

    @classmethod
    def of(cls, matrix: Array, cut: tuple[int, int]) -> Panels:
        """Panels of a matrix [in, out]: a view of it, if no zeros are needed, else a copy.

        A view's panels do not lie in memory one after another, and reading them takes longer.
        """
        i, p, k, m = _panels_shape(matrix.shape, cut)
        if (i * k, p * m) == matrix.shape and matrix.strides[1] == matrix.itemsize:
            return cls(matrix.reshape(i, k, p, m).swapaxes(1, 2), matrix.shape, cut)
        room = np.empty(panels_size(matrix.shape, cut), matrix.dtype)
        panels = cls.within(room, matrix.shape, cut)
        panels.fill(matrix)
        return panels

    def some(self, start: int, stop: int) -> Panels:
        """The panels of some columns, from the first of a panel on."""
        m = self.cut[1]
        return Panels(
            self.data[:, start // m : -(-stop // m)], (self.shape[0], stop - start), self.cut
        )

    def fill(self, matrix: Array) -> None:
        """Take the numbers of a matrix [in, out]."""
        threads = python_threads() if self.data.size > _WORTH_SHARING else 1
        shares = split(self.data.shape[1], threads)
        in_parallel(lambda some: self._fill(matrix, some), shares, threads)

    def _fill(self, matrix: Array, some: slice) -> None:
        k, m = self.cut
        for i in range(len(self.data)):
            for p in range(some.start, some.stop):
                panel, part = self.data[i, p], matrix[i * k : (i + 1) * k, p * m : (p + 1) * m]
                if part.shape != panel.shape:
                    panel[...] = 0
                panel[: part.shape[0], : part.shape[1]] = part

    def array(self) -> Array:
        """The matrix [in, out], a copy."""
        k, m = self.cut
        matrix = np.empty(self.shape, self.data.dtype)
        for i in range(len(self.data)):
            for p in range(self.data.shape[1]):
                part = matrix[i * k : (i + 1) * k, p * m : (p + 1) * m]
                part[...] = self.data[i, p, : part.shape[0], : part.shape[1]]
        return matrix

    def columns(self, numbers: NDArray[np.int64]) -> Array:
        """Some of the columns as rows, (n, in)."""
        p, j = np.divmod(numbers, self.cut[1])
        found: Array = self.data[:, p, :, j]  # (n, I, k)
        return found.reshape(len(numbers), math.prod(found.shape[1:]))[:, : self.shape[0]]


def panels_size(shape: tuple[int, int], cut: tuple[int, int]) -> int:
    """How many numbers the panels of a matrix hold, zeros included."""
    return math.prod(_panels_shape(shape, cut))


def _panels_shape(shape: tuple[int, int], cut: tuple[int, int]) -> tuple[int, int, int, int]:
    (n_in, n_out), (k, m) = shape, cut
    return -(-n_in // k), -(-n_out // m), k, padded(m)


def padded(n: int) -> int:
    """The next multiple of LANES."""
    return -(-n // LANES) * LANES
