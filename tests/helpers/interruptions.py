"""Exceptions raised at random times in gpt2np's code by the handler of a real signal."""

import signal
import time
from collections import defaultdict
from pathlib import Path

import gpt2np

_FOLDER = str(Path(gpt2np.__file__).parent)
_TESTS = str(Path(__file__).parents[1])
_SHORTEST_S = 1e-4  # assumed duration of a call, at least
_FIRST_S = 0.01  # assumed duration of a call before its first end


class Interruption(KeyboardInterrupt):
    pass


class TimerInterrupter:
    """Calls functions, and interrupts most calls at a random time.

    Attributes:
        n_interrupted: number of calls that were interrupted.
        growth: factor by which the next signal is later after an interruption.
    """

    def __init__(self, rng, growth=1.1):
        self.rng, self.n_interrupted, self.growth = rng, 0, growth
        self.seconds = defaultdict(lambda: _FIRST_S)  # of the last whole call, by function
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

    def __call__(self, function, *arguments):
        """Call a function. Returns (its result, the exception that interrupted the call)."""
        name = getattr(function, "__qualname__", repr(function))
        started, self.is_armed = time.perf_counter(), True
        signal.setitimer(signal.ITIMER_REAL, max(self.rng.random() * self.seconds[name], 1e-6))
        try:
            result = function(*arguments)
        except KeyboardInterrupt as error:
            self.stop()
            self.n_interrupted += 1
            self.seconds[name] *= self.growth  # so that every call succeeds in the end
            return None, error.with_traceback(None)
        self.stop()
        self.seconds[name] = 1.1 * max(time.perf_counter() - started, _SHORTEST_S)
        return result, None

    def stop(self):
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
