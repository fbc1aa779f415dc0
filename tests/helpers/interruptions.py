"""Exceptions raised at random points of gpt2np's code, as by the handlers of signals.

CPython runs signal handlers at three kinds of points: after a call of a C function, at a jump
backwards, and at the start of a function. `BytecodeInterrupter` raises at random ones of these
points, each as likely as the others; `TimerInterrupter` at random times, by a real signal;
`InjectingInterrupter` at random times from another thread, as tools that stop a thread do.
"""

import ctypes
import dis
import signal
import sys
import threading
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

import gpt2np

_FOLDER = str(Path(gpt2np.__file__).parent)
_TESTS = str(Path(__file__).parents[1])


class Interruption(KeyboardInterrupt):
    pass


class Interrupter:
    """Calls functions, and interrupts most calls at a random point.

    Attributes:
        n_interrupted: number of calls that were interrupted.
        growth: factor by which the next point is later after an interruption.
    """

    def __init__(self, rng, growth=1.1):
        self.rng, self.n_interrupted, self.growth = rng, 0, growth
        self.sizes = defaultdict(lambda: self.first_size)  # of the last whole call, by function

    def __call__(self, function, *arguments):
        """Call a function. Returns (its result, the exception that interrupted the call)."""
        name = getattr(function, "__qualname__", repr(function))
        point = self.rng.random() * 1.1 * self.sizes[name]
        self.start(point)
        try:
            result = function(*arguments)
        except KeyboardInterrupt as error:
            self.stop()
            self.n_interrupted += 1
            self.sizes[name] *= self.growth  # so that every call succeeds in the end
            return None, error.with_traceback(None)
        self.sizes[name] = max(self.stop(), self.first_size / 100)
        return result, None


class BytecodeInterrupter(Interrupter):
    """Interrupts at a random point; counts the points of a call."""

    first_size = 2000

    def start(self, point):
        count, returned = 0, False

        def trace_call(frame, event, argument):
            if not frame.f_code.co_filename.startswith(_FOLDER):
                return None
            points = _points(frame.f_code)
            frame.f_trace_lines, frame.f_trace_opcodes = False, True

            def trace(frame, event, argument):
                nonlocal count, returned
                if event == "return":
                    returned = True  # no handler runs between a return and its call's end
                elif event == "opcode":
                    if frame.f_lasti in points and not returned:
                        count += 1
                        if count > point:
                            raise Interruption
                    returned = False
                return trace

            return trace

        self.count = lambda: count
        sys.settrace(trace_call)

    def stop(self):
        sys.settrace(None)
        return self.count()


@cache
def _points(code):
    """Return the offsets at which an exception looks like one of a signal handler.

    After a call, the exception belongs to the call: the next offset is left out where other
    exception handlers hold.
    """
    table = dis._parse_exception_table(code) if sys.version_info >= (3, 11) else []

    def handler(offset):
        return next((e for e in table if e.start <= offset < e.end), None)

    points, previous = set(), None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("RESUME", "JUMP_BACKWARD"):
            points.add(instruction.offset)
        is_after_call = previous is not None and previous.opname.startswith("CALL")
        if is_after_call and handler(previous.offset) == handler(instruction.offset):
            points.add(instruction.offset)
        previous = instruction
    return frozenset(points)


class TimerInterrupter(Interrupter):
    """Interrupts at a random time, by a signal; measures the seconds of a call."""

    first_size = 0.01

    def __init__(self, rng, growth=1.1):
        super().__init__(rng, growth)
        self.is_armed = False
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, number, frame):
        # Neither the tests nor the garbage collector, whose exceptions are lost.
        while frame and self.is_armed and not frame.f_code.co_filename.startswith(_FOLDER):
            if frame.f_code.co_filename.startswith(_TESTS):
                return
            frame = frame.f_back
        if self.is_armed:  # a signal may arrive late, after a fork that blocked it
            raise Interruption

    def start(self, point):
        self.started, self.is_armed = time.perf_counter(), True
        signal.setitimer(signal.ITIMER_REAL, max(point, 1e-6))

    def stop(self):
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        return time.perf_counter() - self.started


class InjectingInterrupter(Interrupter):
    """Interrupts at a random time, by an exception that another thread injects."""

    first_size = 0.01

    def start(self, point):
        self.started, self.is_over = time.perf_counter(), threading.Event()
        arguments = [threading.get_ident(), point, self.is_over]
        self.thread = threading.Thread(target=self.inject, args=arguments)
        self.thread.start()

    def inject(self, target, point, is_over):
        is_over.wait(max(point, 1e-6))
        # Python delivers the exception where the target waits now; not in the tests' own code.
        while not is_over.is_set() and not _is_in_package(sys._current_frames()[target]):
            is_over.wait(1e-4)
        if not is_over.is_set():
            error = ctypes.py_object(Interruption)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), error)

    def stop(self):
        self.is_over.set()
        seconds = time.perf_counter() - self.started
        try:
            self.thread.join()
            for _ in range(100):  # an exception that is under way arrives here
                pass
        except Interruption:
            self.thread.join()
        return seconds


def _is_in_package(frame):
    """Tell whether a frame of the package runs, and none of the tests has been called by it."""
    while frame and not frame.f_code.co_filename.startswith(_TESTS):
        if frame.f_code.co_filename.startswith(_FOLDER):
            return True
        frame = frame.f_back
    return False
