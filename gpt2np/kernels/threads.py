"""How many threads compute, and how they share a piece of work. Nothing here imports NumPy."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gpt2np.errors import InvalidArgumentError

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


IDLE_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
IDLE = "20"  # 2²⁰ cycles, a third of a millisecond

Piece = TypeVar("Piece")
_inside = threading.local()  # .piece: whether this thread is at work on one


def let_idle_threads_sleep() -> None:
    """OpenBLAS's idle threads spin for 2²⁶ cycles by default, in the way of whoever else computes.

    It reads the variable once, when NumPy is imported. As it is a setting of the whole process,
    only the command line makes it, and not the library.
    """
    os.environ.setdefault(IDLE_VARIABLE, IDLE)


def set_threads(threads: int | None) -> None:
    """BLAS libraries read these once, when NumPy is imported: it must not have been yet."""
    if threads is None:
        return
    if threads < 1:
        raise InvalidArgumentError(f"--threads is {threads}; it must be at least 1")
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def threads_in_use() -> int:
    """The number that the environment names, at most a thread for each CPU; else all CPUs."""
    set_to = (os.environ.get(variable, "") for variable in THREAD_VARIABLES)
    numbers = [int(value) for value in set_to if value.isdecimal() and int(value)]
    return min(numbers[0], usable_cpus()) if numbers else usable_cpus()


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(work: Callable[[Piece], None], pieces: Sequence[Piece], threads: int) -> None:
    """Call work(piece) for every piece, on this thread and on helpers; returns when all are done.

    The pieces must not depend on each other. Worth it for work that lets go of the interpreter's
    lock, as NumPy's loops do. At most `threads` take part, as many of them as have nothing else to
    do; nobody waits for an idle thread to wake. Any number of threads may call it at once. What is
    called within a piece runs on that piece's thread, unless the piece is the only one.

    Raises:
        What `work` raises, when no piece is running any more. After KeyboardInterrupt those that
        have not begun are left.
    """
    if threads == 1 or len(pieces) <= 1 or getattr(_inside, "piece", False):
        for piece in pieces:
            work(piece)
        return
    shared = _Shared(work, pieces)
    tickets = _helpers()
    try:
        for _ in range(min(threads, len(pieces)) - 1):
            tickets.put((copy_context(), shared.help))
        errors = shared.do()
        while len(errors) < len(pieces):
            errors.append(shared.done.get())
    except BaseException:
        shared.abandon()
        raise
    try:
        for error in errors:
            if error is not None:
                raise error
    finally:
        del errors  # else the error would hold on to itself, and to the arrays of its frames


@contextmanager
def on_this_thread() -> Iterator[None]:
    """While this lasts `in_parallel` leaves nothing that this thread asks for to others."""
    before = getattr(_inside, "piece", False)
    _inside.piece = True
    try:
        yield
    finally:
        _inside.piece = before


def split(count: int, parts: int) -> list[slice]:
    """0 … count cut into at most so many slices, nearly as long as each other; 0 … 0 is one."""
    parts = max(1, min(parts, count))
    cuts = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]


class _Shared:
    """One call's pieces, which any thread that comes may take."""

    def __init__(self, work: Callable[[Any], None], pieces: Sequence[Any]) -> None:
        self.work = work
        self.left = deque(pieces)
        self.helping: list[None] = []  # an entry for each piece that a helper is at work on
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()  # outcomes of the helpers'

    def do(self) -> list[BaseException | None]:
        """Work on pieces until none is left; their outcomes."""
        outcomes = []
        with suppress(IndexError):
            while True:
                outcomes.append(self.outcome(self.left.popleft()))
        return outcomes

    def help(self) -> None:
        """The same on another thread."""
        while self.left:
            self.helping.append(None)  # before it is taken, so that `abandon` can't miss it
            try:
                piece = self.left.popleft()
            except IndexError:
                self.helping.pop()
                return
            self.done.put(self.outcome(piece))
            self.helping.pop()

    def outcome(self, piece: Any) -> BaseException | None:
        try:
            with on_this_thread():
                self.work(piece)
        except BaseException as error:
            return error
        return None

    def abandon(self) -> None:
        """Withdraw what has not begun, and wait for what has."""
        self.left.clear()
        while self.helping:
            with suppress(Empty):
                self.done.get(timeout=0.05)


_Tickets = SimpleQueue[tuple[Context, Callable[[], None]]]
_lock = threading.Lock()
_tickets: _Tickets | None = None


def _helpers() -> _Tickets:
    """The queue from which the helpers, one for each further thread in use, take their work."""
    global _tickets
    with _lock:
        if _tickets is None:
            _tickets = SimpleQueue()
            for number in range(1, threads_in_use()):
                # A daemon is not waited for at exit, where all of them wait for work.
                name = f"gpt2np-{number}"
                threading.Thread(target=_help, name=name, args=(_tickets,), daemon=True).start()
        return _tickets


def _help(tickets: _Tickets) -> None:
    while True:
        context, work = tickets.get()
        context.run(work)
        del context, work  # and the arrays that they hold


def _forget_helpers() -> None:
    global _lock, _tickets
    _lock, _tickets = threading.Lock(), None


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_helpers)
