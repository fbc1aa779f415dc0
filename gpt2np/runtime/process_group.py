"""Processes that compute a pass together.

Python threads wait for the interpreter's lock between NumPy's calls: where products take tens of
microseconds each they lose more by that than they gain, and in a long prompt a fifth of the time.
Processes have no lock in common. The process that has the model forks others, which see its weights
without a copy, and all run the same pass.

Of few tokens each computes some heads and some columns of every layer's outputs, into memory that
all see (tensor parallelism as in Shoeybi et al. 2019, section 3). Of many each computes some of the
tokens, and needs the keys and values of the others, once a block. Nothing is summed over processes,
so the bits are those that one process computes alone. During a pass they wait for each other in a
loop; between passes they sleep.
"""

from __future__ import annotations

import fcntl
import gc
import json
import mmap
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.kernels.blas import one_thread_each
from gpt2np.kernels.matmul import FEW_ROWS
from gpt2np.kernels.threads import on_this_thread
from gpt2np.runtime.batch import undone_on_failure
from gpt2np.runtime.kv_cache import KVCache, Store, own_memory
from gpt2np.runtime.ranks import APART, ColumnMember, Member, MemberLostError, TokenMember
from gpt2np.runtime.shared_memory import SharedMemory

if TYPE_CHECKING:
    import socket  # when others are forked, not for every start to wait for

    from gpt2np.model.model import GPT2

Array = NDArray[Any]

_MESSAGE = 1 << 17  # bytes at most; some 20,000 ids
_Members = tuple[Member, Member]  # for few tokens, and for many
_fork = threading.local()  # .is_ours: whether the one under way is that of a member


class Team:
    """A model's processes, seen from the one that has the model.

    The others are forked when they are needed first. If one is lost, this one goes on alone, for
    good. As long as there is a team, BLAS has one thread: to fork while another thread of this
    process is in a product of several can stop both for ever.

    Attributes:
        size: how many compute together, this one included.

    Raises:
        OSError: the system refuses memory to share.
    """

    def __init__(self, model: GPT2, size: int) -> None:
        addresses = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # cost nothing
        weights = model.weights.nbytes
        self._memory = SharedMemory(addresses, large=weights // 10, most=weights // 2)
        self.size = size
        self._others: list[_Other] = []
        self._is_amid = False  # others are being forked, or in the middle of a pass
        self._weights_were = 0
        self._starts: weakref.WeakKeyDictionary[Store, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._settings = ExitStack()
        self._settings.enter_context(one_thread_each())
        # When the model is gone, or at exit.
        self.end = weakref.finalize(model, _end, self._others, self._settings, os.getpid())
        _teams.add(self)

    @property
    def pids(self) -> list[int]:
        """The other processes; none before the first pass that they are needed for."""
        return [other.pid for other in self._others]

    def close(self) -> None:
        """End the other processes, when no pass is under way."""
        with self._lock:
            self.size = 1
            self.end()

    def memory(self, store: Store, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Zeros for a `Store` that all processes see; of its own, where none are to be had."""
        found = self._memory.zeros(shape, dtype) if self.size > 1 and np.prod(shape) else None
        if found is None:
            return own_memory(store, shape, dtype)
        array, self._starts[store] = found
        store.process = os.getpid()
        return array

    def forward(
        self,
        model: GPT2,
        sequences: Sequence[NDArray[np.int64]],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
    ) -> Array | None:
        """`GPT2.compute` by all; None if they are at work for another thread, or can't see a cache,
        or if it would be too many ids to tell them.

        The caches must have room.
        """
        if self.size == 1 or not self._lock.acquire(blocking=False):
            return None
        try:
            if self.size == 1 or any(cache.store not in self._starts for cache in caches):
                return None
            with undone_on_failure(caches), self._ended_on_failure():
                return self._forward(model, sequences, caches, rows)
        except MemberLostError as error:
            self.size = 1
            self.end()
            warnings.warn(f"the model goes on with one process: {error}", stacklevel=3)
            return None
        finally:
            self._lock.release()

    @contextmanager
    def _ended_on_failure(self) -> Iterator[None]:
        """So that none goes on writing in the middle of a pass that has failed here."""
        try:
            yield
        except BaseException:
            _end_all(self._others)
            raise

    def _forward(
        self,
        model: GPT2,
        sequences: Sequence[NDArray[np.int64]],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
    ) -> Array | None:
        held = [(cache.length, cache.slot, *self._where(cache.store)) for cache in caches]
        work = [[ids.tolist() for ids in sequences], held, rows.tolist()]
        message = json.dumps(work, separators=(",", ":")).encode()
        if len(message) > _MESSAGE:
            return None
        if self._is_amid or self._weights_were != model.weights.changes:
            _end_all(self._others)
        self._is_amid = True
        if not self._others:
            self._begin(model)
        for other in self._others:
            other.send(message)
        with on_this_thread():
            member = _for_pass(self._members, sequences)
            logits = model.compute(sequences, caches, rows, member=member).copy()
        self._is_amid = False
        return logits

    def _where(self, store: Store) -> tuple[int, int, int]:
        tiles, slots = store.keys.shape[:2]
        return self._starts[store], slots, tiles

    def _begin(self, model: GPT2) -> None:
        """Fork the others."""
        room = {
            name: np.frombuffer(mmap.mmap(-1, FEW_ROWS * width * model.dtype.itemsize), model.dtype)
            for name, width in _widths(model).items()
        }
        room = {name: flat.reshape(FEW_ROWS, -1) for name, flat in room.items()}
        done = memoryview(mmap.mmap(-1, 8 * APART * self.size)).cast("q")
        first = os.getpid()

        def members(number: int, is_lost: Callable[[], bool]) -> _Members:
            few, many = (
                kind(number=number, size=self.size, room=room, done=done, is_lost=is_lost)
                for kind in (ColumnMember, TokenMember)
            )
            return few, many

        with model.weights.kept():
            self._weights_were = model.weights.changes
            for number in range(1, self.size):
                theirs = members(number, lambda: os.getppid() != first)
                _fork_one(self._others, partial(_serve, model, theirs, self._memory))
        self._members = members(0, partial(_any_has_ended, self._others))

    def forget(self) -> None:
        """In a fork of the user's: there are no others."""
        self.size, self._lock = 1, threading.Lock()
        for other in self._others:
            other.socket.close()
        self._others.clear()


class _Other:
    """Another process, or one that is about to be."""

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """It says so first of all; 0 if it was never forked."""
        if self._pid is None:
            with suppress(ConnectionResetError):  # it was killed before it could
                self._pid = int(self.socket.recv(_MESSAGE) or 0)
        return self._pid or 0

    def send(self, message: bytes) -> None:
        """Nothing happens if it has ended."""
        from socket import MSG_NOSIGNAL

        try:
            self.socket.send(message, MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except OSError as error:  # as where the system's limit is below _MESSAGE
            raise MemberLostError(f"another one can't be told its work: {error}") from error

    def has_ended(self) -> bool:
        try:
            return not self.pid or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # somebody else has waited for it
            return True


def _any_has_ended(others: Sequence[_Other]) -> bool:
    return any(other.has_ended() for other in others)


def _end_all(others: list[_Other]) -> None:
    while others:
        other = others[-1]
        if not other.has_ended():  # else its number may be another process's by now
            os.kill(other.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(other.pid, 0)
        others.pop()
        other.socket.close()


def _end(others: list[_Other], settings: ExitStack, first: int) -> None:
    """End what a team has begun; in a fork of the user's nothing."""
    if os.getpid() == first:
        _end_all(others)
        settings.close()


def _fork_one(others: list[_Other], serve: partial[NoReturn]) -> None:
    """Fork one that serves; known among the others before it is there, for Ctrl-C's sake."""
    import socket

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE)
    here.settimeout(None)  # whatever the program's default is
    others.append(_Other(here))
    with there, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it needs none of the other threads
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _fork.is_ours = True
        try:
            if not os.fork():
                serve(there)
        except OSError as error:
            raise MemberLostError(f"another one can't be forked: {error}") from error
        finally:
            _fork.is_ours = False
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    model: GPT2, members: _Members, memory: SharedMemory, messages: socket.socket
) -> NoReturn:
    """Compute as a member, until the first one closes the socket or is gone."""
    try:
        messages = _cut_off(messages)
        messages.send(str(os.getpid()).encode())
        with on_this_thread(), np.errstate(all="ignore"):  # that is for the first one to say
            while message := messages.recv(_MESSAGE):
                lists, held, chosen = json.loads(message)
                sequences = [np.array(ids, np.int64) for ids in lists]
                caches, rows = _seen(model, memory, held), np.array(chosen, np.int64)
                model.compute(sequences, caches, rows, member=_for_pass(members, sequences))
    finally:
        os._exit(0)


def _for_pass(members: _Members, sequences: Sequence[NDArray[np.int64]]) -> Member:
    few, many = members
    return few if sum(map(len, sequences)) <= FEW_ROWS else many


def _seen(model: GPT2, memory: SharedMemory, held: Sequence[Sequence[int]]) -> list[KVCache]:
    """The first process's caches, those of one store in one store here, too."""

    def store(start: int, slots: int, tiles: int) -> Store:
        def there(_: Store, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return memory.at(start, shape, dtype)

        return Store(model.config, model.dtype, slots, tiles, there)

    places = [tuple(place) for _, _, *place in held]
    stores = {place: store(*place) for place in set(places)}
    return [
        KVCache.within(stores[place], slot, length)
        for (length, slot, *_), place in zip(held, places, strict=True)
    ]


def _cut_off(messages: socket.socket) -> socket.socket:
    """Leave all other files, the signals and the garbage to the process that forked this one."""
    import socket

    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which sends it to all
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.disable()
    kept = fcntl.fcntl(messages.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if file > 2 and file != kept:
            with suppress(OSError):
                os.close(file)
    messages = socket.socket(fileno=kept)
    messages.settimeout(None)
    return messages


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


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _after_fork() -> None:
    for team in () if getattr(_fork, "is_ours", False) else _teams:
        team.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
