"""A process's part in a pass: all of it, or some outputs of every layer (`gpt2np.model.team`).

Shape letters: n rows; panels (I, P, k, m) are I groups of inputs by P panels of m outputs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.model.blas import python_threads
from gpt2np.model.linear import linear
from gpt2np.threads import in_parallel, split

Array = NDArray[Any]

APART = 8  # places between two members' counts, so that they are not in one cache line
_LOOKS = 100  # at what others have done, before another process may run
_PATIENCE = 60.0  # seconds


class MemberLostError(Exception):
    """Another process has ended, or doesn't answer."""


@dataclass
class Member:
    """One of several processes that run the same pass.

    Attributes:
        number, size: which of how many.
        room: name → (FEW_ROWS, P·m), memory that all of them see, for what they put out.
        done: how many parts each has done, at every APARTth place; all see that, too.
        is_lost: whether another one is known to have ended.
    """

    number: int = 0
    size: int = 1
    room: Mapping[str, Array] = field(default_factory=dict)
    done: memoryview = field(default_factory=lambda: memoryview(b""))
    is_lost: Callable[[], bool] = bool

    def linear(
        self,
        name: str,
        x: Array,
        panels: Array,
        bias: Array | None = None,
        then: Callable[[Array], Array] | None = None,
    ) -> Array:
        """`gpt2np.model.linear.linear` and then a function of each number, (n, P·m)."""
        _, outputs, _, width = panels.shape

        def some(part: slice) -> Array:
            columns = slice(part.start * width, part.stop * width)
            y = linear(x, panels[:, part], None if bias is None else bias[columns])
            return then(y) if then else y

        return self.columns(name, x, (outputs, width), some)

    def columns(
        self,
        name: str,
        x: Array,
        shape: tuple[int, int],
        some: Callable[[slice], Array],
        shares: int = 1,
    ) -> Array:
        """(n, P·m) for x (n, …) and shape (P, m): some(part of P) gives the columns of a part.

        Several members compute one part each, and have the whole when all are done. A single one
        leaves as many shares to threads.
        """
        n, (outputs, width) = len(x), shape
        if self.size == shares == 1:
            return some(slice(0, outputs))
        if self.size == 1:
            y = np.empty((n, outputs * width), x.dtype)
        else:
            y = self.room[name][:n, : outputs * width]

        def one(part: slice) -> None:
            y[:, part.start * width : part.stop * width] = some(part)

        if self.size == 1:
            in_parallel(one, split(outputs, shares), python_threads())
        else:
            for part in split(outputs, self.size)[self.number : self.number + 1]:
                one(part)
            self._wait()
        return y

    def _wait(self) -> None:
        """Until all have done as many parts as this one."""
        own = self.number * APART
        parts = self.done[own] + 1
        self.done[own] = parts
        for place in range(0, self.size * APART, APART):
            looks = 0
            while self.done[place] < parts:
                looks += 1
                if looks > _LOOKS:
                    self._wait_longer(place, parts)

    def _wait_longer(self, place: int, parts: int) -> None:
        since = time.monotonic()
        while self.done[place] < parts:
            os.sched_yield()
            if self.is_lost():
                raise MemberLostError("another one has ended")
            if time.monotonic() - since > _PATIENCE:
                raise MemberLostError(f"another one has not answered for {_PATIENCE:.0f} s")


ALONE = Member()
