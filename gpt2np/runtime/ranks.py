"""Who computes a pass: one process alone, or several; each some outputs of layers, or some tokens.

Shape letters: n rows; panels (I, P, k, m) are I groups of inputs by P panels of m outputs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.kernels.blas import blas, python_threads
from gpt2np.kernels.linear import linear
from gpt2np.kernels.threads import in_parallel, split, threads_in_use
from gpt2np.runtime.query_blocks import Group

Array = NDArray[Any]

APART = 8  # places between two members' counts, so that they are not in one cache line
_LOOKS = 100  # at what others have done, before another process may run
_PATIENCE = 60.0  # seconds of waiting


def most_processes() -> int:
    """As many as threads are in use, where processes can compute together; elsewhere 1.

    They need Linux, a BLAS library that can be told to use one thread, and a processor whose cores
    see each other's writes in their order (x86).
    """
    can = sys.platform == "linux" and os.uname().machine == "x86_64"
    return threads_in_use() if can and blas() else 1


class MemberLostError(Exception):
    """Another process has ended, or doesn't answer."""


class Alone:
    """The only process of a pass, where threads share what pays for it."""

    size: int = 1  # processes
    has_all_tokens: bool = True

    @property
    def queries_among(self) -> int:
        """How many threads or processes share the queries of attention."""
        return python_threads()

    def linear(
        self,
        name: str,
        x: Array,
        panels: Array,
        bias: Array | None = None,
        then: Callable[[Array], Array] | None = None,
    ) -> Array:
        """`gpt2np.kernels.linear.linear` and then a function of each number, (n, P·m)."""
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
        """What some(part of P) computes, put together: (n, P·m) for x (n, …) and shape (P, m).

        In so many shares. name: of what comes out, for several processes.
        """
        outputs, width = shape
        if shares == 1:
            return some(slice(0, outputs))
        y = np.empty((len(x), outputs * width), x.dtype)

        def one(part: slice) -> None:
            y[:, part.start * width : part.stop * width] = some(part)

        in_parallel(one, split(outputs, shares), python_threads())
        return y

    def own(self, groups: list[Group]) -> list[Group]:
        """Those groups of queries whose tokens are this process's."""
        return groups

    def logits(self, rows: int, vocab_size: int, dtype: np.dtype[Any]) -> Array:
        """Where those of several passes, or of several processes' tokens, are put: (R, V)."""
        return np.empty((rows, vocab_size), dtype)

    def meet(self) -> None:
        """Wait until all have done so much with the tokens that they have."""


ALONE = Alone()


@dataclass(kw_only=True)
class Member(Alone):
    """One of several processes that run the same pass at the same time.

    Attributes:
        number, size: which of how many.
        room: name → (FEW_ROWS, P·m), memory that all of them see, for what they compute.
        done: how many parts each has computed, at every APARTth place; all see that, too.
        is_lost: whether another one is known to have ended.
    """

    number: int
    size: int
    room: Mapping[str, Array]
    done: memoryview
    is_lost: Callable[[], bool]

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
        since = time.thread_time()  # stands still while all are stopped
        while self.done[place] < parts:
            os.sched_yield()
            if self.is_lost():
                raise MemberLostError("another one has ended")
            if time.thread_time() - since > _PATIENCE:
                raise MemberLostError(f"another one has not answered for {_PATIENCE:g} s")


class ColumnMember(Member):
    """One that computes some outputs of every layer, for all tokens: few, at most FEW_ROWS.

    All wait for each other where outputs are put together, and nowhere else.
    """

    @property
    def queries_among(self) -> int:
        """They aren't shared, as each has heads of its own."""
        return 1

    def columns(
        self,
        name: str,
        x: Array,
        shape: tuple[int, int],
        some: Callable[[slice], Array],
        shares: int = 1,
    ) -> Array:
        """The same: it computes one part, and has the whole when all have done theirs.

        What it returns lasts until the next time that something of this name is computed.
        """
        outputs, width = shape
        y = self.room[name][: len(x), : outputs * width]
        start, stop = (outputs * number // self.size for number in (self.number, self.number + 1))
        if start < stop:
            y[:, start * width : stop * width] = some(slice(start, stop))
        self._wait()
        return y


class TokenMember(Member):
    """One that computes all outputs of every layer, for some of many tokens.

    It needs the others for the keys and values of theirs.
    """

    has_all_tokens = False

    @property
    def queries_among(self) -> int:
        """As many processes."""
        return self.size

    def columns(
        self,
        name: str,
        x: Array,
        shape: tuple[int, int],
        some: Callable[[slice], Array],
        shares: int = 1,
    ) -> Array:
        """The same, all at once: the others' keys and values are waited for only once a block."""
        return super().columns(name, x, shape, some)

    def own(self, groups: list[Group]) -> list[Group]:
        """They go round there and back, as later ones see more: 0, 3, 4, 7, … and 1, 2, 5, 6, …"""
        there_and_back = [*range(self.size), *reversed(range(self.size))]
        whose = zip(groups, cycle(there_and_back), strict=False)
        return [group for group, number in whose if number == self.number]

    def logits(self, rows: int, vocab_size: int, dtype: np.dtype[Any]) -> Array:
        """The same, of at most FEW_ROWS, where all see them."""
        return self.room["logits"][:rows, :vocab_size]

    def meet(self) -> None:
        """The same."""
        self._wait()
