"""Processes that compute passes of few rows together.

The products of such a pass take tens of microseconds each. Python threads lose more by waiting for
the interpreter's lock between them than they gain; processes have no lock in common. The process
that has the model forks others, which see its weights without a copy. All run the same pass: each
computes some heads and some columns of every layer's outputs, into memory that all see (tensor
parallelism as in Shoeybi et al. 2019, section 3; but nothing is summed over processes, so that all
bits are those that one process computes alone). During a pass they wait for each other in a loop;
between passes they sleep.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import pickle
import platform
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.model.blas import blas
from gpt2np.model.cache import KVCache, Store, own_memory
from gpt2np.model.member import APART, Member, MemberLostError
from gpt2np.model.product import FEW_ROWS
from gpt2np.threads import on_this_thread, threads_in_use

if TYPE_CHECKING:
    from gpt2np.model.gpt2 import GPT2

Array = NDArray[Any]

_MESSAGE = 1 << 16  # bytes at most


def most_processes() -> int:
    """As many as threads are in use, where processes can compute together; elsewhere 1.

    They need Linux, a BLAS library that can be told to use one thread, and a processor whose cores
    see each other's writes in their order (x86).
    """
    can = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
    return threads_in_use() if can and blas() else 1


class Team:
    """A model's processes, seen from the one that has the model.

    The others are forked when they are needed first. If one is lost, this one goes on alone.

    Attributes:
        size: how many compute together, this one included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._others: list[_Other] = []
        self._member = Member()
        self._weights_were = 0
        self._arrays: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()
        self._lock = threading.Lock()
        weakref.finalize(self, _end, self._others, os.getpid())  # at exit at the latest
        _teams.add(self)

    @property
    def pids(self) -> list[int]:
        """The other processes; none before the first pass that they are needed for."""
        return [other.pid for other in self._others]

    def close(self) -> None:
        """End the other processes."""
        _end(self._others, os.getpid())

    def memory(self, store: Store, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Zeros for a `Store` that all processes see; of its own, where none are to be had."""
        if self.size == 1 or not math.prod(shape):
            return own_memory(store, shape, dtype)
        try:
            flat = self._memory(math.prod(shape) * np.dtype(dtype).itemsize, dtype)
        except OSError:  # too many open files, or too little memory
            return own_memory(store, shape, dtype)
        self._stores.add(store)
        return flat.reshape(shape)

    def _memory(self, size: int, dtype: DTypeLike) -> Array:
        file = os.memfd_create("gpt2np")
        try:
            os.ftruncate(file, size)
            memory = mmap.mmap(file, size)
            flat: Array = np.frombuffer(memory, dtype)
            address = _address(flat)
            for other in self._others:
                other.send(("see", address, flat.dtype.str), file)
        finally:
            os.close(file)
        self._arrays[address] = flat
        let_go = partial(_let_go, memory, self._others, address, os.getpid())
        weakref.finalize(flat, let_go).atexit = False
        return flat

    def forward(
        self,
        model: GPT2,
        sequences: Sequence[NDArray[np.int64]],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
    ) -> Array | None:
        """`GPT2.compute` by all; None if they are at work for another thread, or can't see a cache.

        The caches must have room.
        """
        if self.size == 1 or not self._lock.acquire(blocking=False):
            return None
        try:
            if any(_address(cache.store.memory) not in self._arrays for cache in caches):
                return None
            return self._forward(model, sequences, caches, rows)
        except (MemberLostError, OSError) as error:  # or it can't be forked
            self.size = 1
            self.close()
            warnings.warn(f"the model goes on with one process: {error}", stacklevel=3)
            return None
        except BaseException:
            self.close()  # in the middle of a pass
            raise
        finally:
            self._lock.release()

    def _forward(
        self,
        model: GPT2,
        sequences: Sequence[NDArray[np.int64]],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
    ) -> Array:
        if self._others and self._weights_were != model.weights.changes:
            self.close()
        if not self._others:
            self._fork(model)
        work = "compute", sequences, list(map(_held, caches)), rows
        for other in self._others:
            other.send(work)
        with on_this_thread():
            return model.compute(sequences, caches, rows, member=self._member).copy()

    def _fork(self, model: GPT2) -> None:
        room = {
            name: np.frombuffer(mmap.mmap(-1, FEW_ROWS * width * model.dtype.itemsize), model.dtype)
            for name, width in _widths(model).items()
        }
        room = {name: flat.reshape(FEW_ROWS, -1) for name, flat in room.items()}
        done = memoryview(mmap.mmap(-1, 8 * APART * self.size)).cast("q")
        first = os.getpid()
        with model.weights.kept(), _without_signals():
            self._weights_were = model.weights.changes
            for number in range(1, self.size):
                member = Member(number, self.size, room, done, lambda: os.getppid() != first)
                self._others.append(_forked(model, member, dict(self._arrays)))
        self._member = Member(0, self.size, room, done, partial(_one_has_ended, self._others))

    def forget(self) -> None:
        """In a fork of the user's: no others, and memory of its own."""
        self.size, self._lock = 1, threading.Lock()
        for other in self._others:
            other.socket.close()
        self._others.clear()
        for store in self._stores:
            store.keep_own()


class _Other:
    """Another process."""

    def __init__(self, pid: int, to_it: socket.socket) -> None:
        self.pid, self.socket = pid, to_it

    def send(self, message: tuple[Any, ...], *files: int) -> None:
        """Nothing happens if it has ended."""
        with suppress(OSError):
            socket.send_fds(self.socket, [pickle.dumps(message)], files)

    def has_ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # somebody else has waited for it
            return True


def _one_has_ended(others: list[_Other]) -> bool:
    return any(other.has_ended() for other in others)


def _end(others: list[_Other], first: int) -> None:
    """End processes; done by the one that began them."""
    if os.getpid() != first:
        return
    for other in others:
        other.socket.close()
        with suppress(ProcessLookupError):
            os.kill(other.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(other.pid, 0)
    others.clear()


def _let_go(memory: mmap.mmap, others: list[_Other], address: int, first: int) -> None:
    """Give memory back, though others may still have it mapped; done by the one that got it."""
    if os.getpid() != first:
        return
    memory.madvise(mmap.MADV_REMOVE)
    for other in others:
        other.send(("drop", address))


@contextmanager
def _without_signals() -> Iterator[None]:
    """So that no handler runs before a new process is known, or knows itself what it is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked(model: GPT2, member: Member, arrays: dict[int, Array]) -> _Other:
    """A process that serves as a member."""
    global _is_ours
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it needs none of the other threads
        _is_ours = True
        try:
            pid = os.fork()
        finally:
            _is_ours = False
        if not pid:
            _serve(model, member, there, arrays)
    return _Other(pid, here)


def _serve(
    model: GPT2, member: Member, messages: socket.socket, arrays: dict[int, Array]
) -> NoReturn:
    """Compute as one of the members, until the first one closes the socket or is gone."""
    try:
        _cut_off(messages.fileno())
        stores: dict[int, Store] = {}
        while True:
            message, files = socket.recv_fds(messages, _MESSAGE, 1)[:2]
            if not message:
                break
            what, *more = pickle.loads(message)
            if what == "see":
                address, dtype = more
                arrays[address] = np.frombuffer(mmap.mmap(files[0], 0), dtype)
                os.close(files[0])
            elif what == "drop":
                arrays.pop(more[0], None)
                stores.pop(more[0], None)
            else:
                sequences, held, rows = more
                caches = [_seen(model, one, stores, arrays) for one in held]
                with on_this_thread():
                    model.compute(sequences, caches, rows, member=member)
    finally:
        os._exit(0)


def _held(cache: KVCache) -> tuple[int, ...]:
    """What another process must know of a cache."""
    tiles, slots = cache.store.keys.shape[:2]
    return cache.length, cache.slot, _address(cache.store.memory), slots, tiles


def _seen(
    model: GPT2, held: tuple[int, ...], stores: dict[int, Store], arrays: dict[int, Array]
) -> KVCache:
    """The same cache in this process."""
    length, slot, address, slots, tiles = held
    if address not in stores:
        stores[address] = Store(
            model.config,
            model.dtype,
            slots,
            tiles,
            lambda _, shape, __: arrays[address].reshape(shape),
        )
    return KVCache.within(stores[address], slot, length)


def _cut_off(kept: int) -> None:
    """Leave all files but one to the process that forked this, and the signals; make no noise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _widths(model: GPT2) -> dict[str, int]:
    """How many columns each layer puts out, by the names that the forward pass uses."""
    weights = model.weights.for_pass(short=False)
    block, (unembedding,) = next(iter(weights.blocks)), weights.unembedding
    return {
        "z": block.c_attn.shape[2] * block.c_attn.shape[4],
        "attn.out": len(block.attn_c_proj_bias),
        "mlp.act": len(block.c_fc_bias),
        "mlp.out": len(block.mlp_c_proj_bias),
        "logits": unembedding.shape[1] * unembedding.shape[3],
    }


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_teams: weakref.WeakSet[Team] = weakref.WeakSet()
_is_ours = False  # whether the fork under way is one of _forked's


def _after_fork() -> None:
    for team in () if _is_ours else _teams:
        team.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
