"""Command lines with patched functions, for tests of signals that do not depend on speed.

A test must send a signal after the work has started and long before it ends. Without a patch, a
fast machine may finish before the signal, and a busy one may receive it too late.
"""

import sys

_MAIN = "from gpt2np.__main__ import main\nraise SystemExit(main())\n"

_REPORT_START = """
import sys
import gpt2np.cli.main as cli
run = cli.run
def reporting(arguments):
    print("ready", file=sys.stderr, flush=True)
    return run(arguments)
cli.run = reporting
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

_WAIT_FOR_STDIN = """
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

_KILL_RANKS = """
from multiprocessing import active_children
from gpt2np import GPT2
forward, passes = GPT2.forward, []
def killing(self, *args, **kwargs):
    passes.append(1)
    for process in active_children() if len(passes) == 6 else ():
        process.kill()
    return forward(self, *args, **kwargs)
GPT2.forward = killing
"""

_REPORT_GENERATION = """
import sys
from gpt2np import GPT2
forward, reports = GPT2.forward, []
def reporting(*args, **kwargs):
    if not reports:
        reports.append(print("begun", file=sys.stderr, flush=True))
    return forward(*args, **kwargs)
GPT2.forward = reporting
"""

_SMALL_PARTS = """
import os, time
from gpt2np.data import resumable
os.fsync = lambda _: None
resumable.SAVE_SECONDS = 0
write = resumable._Saved.save
def slow(*args):
    write(*args)
    time.sleep({seconds})
resumable._Saved.save = slow
"""

_SMALL_BATCHES = """
from gpt2np.evaluation import corpus
from gpt2np.tokenizer import dataset
corpus.BATCH_SIZE, dataset.BATCH_SIZE = 3000, 60_000
"""

_SLOW_CONVERSION = """
import importlib, time
convert = importlib.import_module("gpt2np.checkpoint.convert")
read_chunks = convert.read_chunks
def slow(*args):
    time.sleep(0.1)
    yield from read_chunks(*args)
convert.read_chunks = slow
"""


def patched_cli(code: str) -> list[str]:
    """Return a command that runs `code` and then `python -m gpt2np`."""
    return [sys.executable, "-c", code + _MAIN]


def report_start() -> list[str]:
    """Write "ready" to stderr before the command line imports the command."""
    return patched_cli(_REPORT_START)


def slow_model() -> list[str]:
    """Generate at most 100 tokens per second, like a larger model."""
    return patched_cli(_SLOW_MODEL)


def wait_for_stdin() -> list[str]:
    """Wait for a byte on stdin before the sixth forward pass."""
    return patched_cli(_WAIT_FOR_STDIN)


def kill_ranks() -> list[str]:
    """Kill the model's other processes before the sixth forward pass."""
    return patched_cli(_KILL_RANKS)


def report_generation() -> list[str]:
    """Write "begun" to stderr at the first forward pass."""
    return patched_cli(_REPORT_GENERATION)


def small_parts(seconds: float) -> list[str]:
    """Save after every step of a job, then pause."""
    return patched_cli(_SMALL_PARTS.format(seconds=seconds))


def small_steps(seconds: float) -> list[str]:
    """Make the steps of `score` and `encode` small, save after each, then pause."""
    return patched_cli(_SMALL_BATCHES + _SMALL_PARTS.format(seconds=seconds))


def slow_conversion() -> list[str]:
    """Make `convert` take 0.1 seconds per tensor, as for larger tensors."""
    return patched_cli(_SLOW_CONVERSION)
