"""Command lines with patched functions, for tests of signals that do not depend on speed.

A test must send a signal after the work has started and long before it ends. Without a patch, a
fast machine may finish before the signal, and a busy one may receive it too late.
"""

import sys

_BEFORE_A_PASS = """
import sys, time
from multiprocessing import active_children
from gpt2np import GPT2
forward, passes = GPT2.forward, []
def patched(self, *args, **kwargs):
    passes.append(1)
    if {number} in (0, len(passes)):
        {code}
    return forward(self, *args, **kwargs)
GPT2.forward = patched
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
corpus.BATCH_SIZE, dataset.BATCH_SIZE = 500, 60_000
"""


def patched_cli(code: str) -> list[str]:
    """Return a command that runs `code` and then `python -m gpt2np`."""
    main = "from gpt2np.__main__ import main\nraise SystemExit(main())\n"
    return [sys.executable, "-c", code + main]


def before_pass(number: int, code: str) -> list[str]:
    """Run `code` before the forward pass of a number; before every pass, if that is 0."""
    return patched_cli(_BEFORE_A_PASS.format(number=number, code=code))


def small_parts(seconds: float) -> list[str]:
    """Save after every step of a job, then pause."""
    return patched_cli(_SMALL_PARTS.format(seconds=seconds))


def small_steps(seconds: float) -> str:
    """Code that makes the steps of `score` and `encode` small, saves after each, then pauses."""
    return _SMALL_BATCHES + _SMALL_PARTS.format(seconds=seconds)


# At most 100 tokens per second, as with a larger model.
SLOW_MODEL = before_pass(0, "time.sleep(0.01)")

WAIT_FOR_STDIN = before_pass(6, "sys.stdin.read(1)")

# The model's other processes are killed.
KILL_RANKS = before_pass(6, "[process.kill() for process in active_children()]")

REPORT_GENERATION = before_pass(1, 'print("begun", file=sys.stderr, flush=True)')

# "ready" comes before the command line imports the command.
REPORT_START = patched_cli(
    """
import sys
import gpt2np.cli.main as cli
run = cli.run
def reporting(arguments):
    print("ready", file=sys.stderr, flush=True)
    return run(arguments)
cli.run = reporting
"""
)

# `convert` takes 0.1 seconds per tensor, as for larger tensors.
SLOW_CONVERSION = patched_cli(
    """
import importlib, time
convert = importlib.import_module("gpt2np.checkpoint.convert")
read_chunks = convert.read_chunks
def slow(*args):
    time.sleep(0.1)
    yield from read_chunks(*args)
convert.read_chunks = slow
"""
)
