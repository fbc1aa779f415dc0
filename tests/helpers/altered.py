"""The command line with something in its way, for tests that must not depend on a machine's speed.

A signal is sent when what it interrupts has begun, and long before it would end: of its own accord
a fast machine is done before the test has looked, and a busy one looks late.
"""

import sys

_MAIN = "from gpt2np.__main__ import main\nraise SystemExit(main())\n"

_READY = """
import signal, sys
install = signal.signal
def installing(*args):
    before = install(*args)
    signal.signal = install
    print("ready", file=sys.stderr, flush=True)
    return before
signal.signal = installing
"""

_SLOW_MODEL = """
import time
from gpt2np import GPT2
forward = GPT2.forward
def slow(*args, **kwargs):
    time.sleep(0.01)
    return forward(*args, **kwargs)
GPT2.forward = slow
"""

_WAITING = """
import sys
from gpt2np import GPT2
forward, passes = GPT2.forward, []
def waiting(*args, **kwargs):
    passes.append(1)
    if len(passes) == 6:
        sys.stdin.read(1)
    return forward(*args, **kwargs)
GPT2.forward = waiting
"""

_KILLING = """
import os, signal
from gpt2np import GPT2
forward, passes = GPT2.forward, []
def killing(self, *args, **kwargs):
    passes.append(1)
    for process in self.worker_pids if len(passes) == 6 else ():
        os.kill(process, signal.SIGKILL)
    return forward(self, *args, **kwargs)
GPT2.forward = killing
"""

_TELLING = """
import signal, sys
from gpt2np import GPT2
from gpt2np.cli.live_text import ctrl_c
forward, told = GPT2.forward, []
def telling(*args, **kwargs):
    if not told and signal.getsignal(signal.SIGINT) is ctrl_c:
        told.append(print("begun", file=sys.stderr, flush=True))
    return forward(*args, **kwargs)
GPT2.forward = telling
"""

_SAVING_ALL_THE_TIME = """
import time
from gpt2np.prompts import job
from gpt2np.data import dataset
from gpt2np.data.append_log import AppendLog
job._CHECKPOINT_SECONDS = dataset._SAVE_INTERVAL_S = 0
save = AppendLog.save
def slow(*args):
    save(*args)
    time.sleep({seconds})
AppendLog.save = slow
"""

_SLOW_CONVERSION = """
import importlib, time
convert = importlib.import_module("gpt2np.checkpoint.convert")
read_values = convert._read_values
def slow(*args):
    time.sleep(0.1)
    yield from read_values(*args)
convert._read_values = slow
"""


def altered(code: str) -> list[str]:
    """`python -m gpt2np`, after `code`."""
    return [sys.executable, "-c", code + _MAIN]


def ready() -> list[str]:
    """It writes "ready" to stderr when Ctrl-C is its own affair, and no longer Python's."""
    return altered(_READY)


def slow_model() -> list[str]:
    """At most a hundred tokens in a second, as if the model were larger."""
    return altered(_SLOW_MODEL)


def waiting() -> list[str]:
    """It needs a byte from stdin before the model's sixth pass."""
    return altered(_WAITING)


def killing() -> list[str]:
    """The model's other processes are killed before its sixth pass."""
    return altered(_KILLING)


def telling() -> list[str]:
    """It writes "begun" to stderr when Ctrl-C would interrupt a generation."""
    return altered(_TELLING)


def saving_all_the_time(seconds: float) -> list[str]:
    """A checkpoint after each step of `encode` and `generate --prompts`, and then a pause."""
    return altered(_SAVING_ALL_THE_TIME.format(seconds=seconds))


def slow_conversion() -> list[str]:
    """`convert` takes a tenth of a second for each tensor, as if they were larger."""
    return altered(_SLOW_CONVERSION)
