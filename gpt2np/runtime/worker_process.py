"""Worker processes: forking, messaging and killing them. A worker computes passes as one rank."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpt2np.interrupts import held_signals
from gpt2np.runtime.ranks import RankFailedError

if TYPE_CHECKING:
    import socket  # imported when a worker is forked: most starts need none

MAX_MESSAGE = 1 << 17  # bytes; some 20,000 token ids

_fork = threading.local()  # .is_worker: whether the fork in progress creates a worker


def is_forking_worker() -> bool:
    """Tell whether the fork in progress on this thread creates a worker process."""
    return getattr(_fork, "is_worker", False)


class Worker:
    """A handle to a worker process, in the process that forked it."""

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self.pid = 0  # until the process has been forked

    def send(self, message: bytes) -> None:
        """Send a message to the worker. An ended worker is noticed only at the next barrier.

        Raises:
            RankFailedError: the system can't send the message.
        """
        from socket import MSG_NOSIGNAL

        try:
            self.socket.send(message, MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except OSError as error:  # the system's limit may be below MAX_MESSAGE
            raise RankFailedError(f"cannot send a message to another rank: {error}") from error

    def failure(self) -> str:
        """Describe why the worker process has ended; return "" as long as the process runs."""
        from socket import MSG_DONTWAIT

        if not self.has_ended():
            return ""
        error = b""
        for _ in range(2):  # if the worker has left a message unread, the first attempt fails
            with suppress(OSError):
                error = error or self.socket.recv(MAX_MESSAGE, MSG_DONTWAIT)
        return ": ".join(filter(None, ["another rank's process has ended", error.decode()]))

    def has_ended(self) -> bool:
        """Tell whether the worker process has ended."""
        try:
            return not self.pid or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # the program has already waited for the worker
            return True


def kill_workers(workers: list[Worker]) -> None:
    """Kill all worker processes in the list, and empty the list.

    At exit, several threads may kill the same workers.
    """
    for worker in workers[::-1]:
        if not worker.has_ended():  # otherwise the pid may be another process's by now
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        with suppress(ValueError):
            workers.remove(worker)
        worker.socket.close()


def wait_for_blas(seconds: float) -> bool:
    """Wait up to `seconds` until all BLAS threads are idle; return whether they are.

    A fork during a matrix product can cause a deadlock. Set BLAS to one thread first. Threads
    of an earlier product may then stay busy for about 20 ms.
    """
    end = time.monotonic() + seconds
    while not (is_idle := _is_blas_idle()) and time.monotonic() < end:
        time.sleep(0.001)
    return is_idle


def _is_blas_idle() -> bool:
    """Tell whether all threads that Python did not start are asleep."""
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        return all(
            # After the name, which can have any bytes, comes the state: S for sleeping.
            (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"
            for thread in Path("/proc/self/task").iterdir()
            if thread.name not in python_threads
        )
    except OSError:  # a thread has just ended, or too many files are open
        return False


def fork_worker(workers: list[Worker], serve: Callable[[socket.socket], None]) -> None:
    """Fork a worker process that calls serve(socket), and append its handle to `workers`.

    The socket receives the messages that `Worker.send` sends.

    Raises:
        RankFailedError: the system can't fork, or too many files are open.
    """
    import socket

    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise RankFailedError(f"cannot connect to another rank: {error}") from error
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_MESSAGE)
    ours.settimeout(None)  # overrides the default timeout of the program
    worker = Worker(ours)
    workers.append(worker)
    # A fork calls Python functions, such as one that releases the lock of `logging`. If a handler
    # raised KeyboardInterrupt there, Python would drop the error and the lock would stay locked.
    with theirs, held_signals(), warnings.catch_warnings():
        # Python warns of a fork with several threads; the worker needs none of the other threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            _fork.is_worker = True
            worker.pid = os.fork()
            if not worker.pid:
                _serve_and_exit(serve, theirs)
        except OSError as error:
            raise RankFailedError(f"cannot fork another rank: {error}") from error
        finally:
            _fork.is_worker = False
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve_and_exit(serve: Callable[[socket.socket], None], socket: socket.socket) -> NoReturn:
    try:
        socket = _detach(socket)
        serve(socket)
        os._exit(0)
    except BaseException as error:
        with suppress(OSError):
            socket.send(traceback.format_exception_only(error)[-1].strip().encode()[:MAX_MESSAGE])
    finally:
        os._exit(1)


def _detach(messages: socket.socket) -> socket.socket:
    """Detach a worker from its parent: reset signals, stop garbage collection, close other files.

    Returns the worker's socket under a new file descriptor.
    """
    import socket

    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.disable()
    kept = fcntl.fcntl(messages.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if file > 2 and file != kept:
            with suppress(OSError):
                os.close(file)
    messages = socket.socket(fileno=kept)
    messages.settimeout(None)
    return messages
