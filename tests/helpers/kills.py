"""Commands that are killed at random moments and run again."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from helpers.processes import wait_while_running


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of an output: of a file, or of each file of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name if path.is_dir() else "": file.read_bytes() for file in files}


def kill_at_random(command: list[str], out: Path, whole: Path, n_kills: int, longest_s: float):
    """Kill a command with SIGKILL until `n_kills` kills have hit, each some time after it started.

    The output must be that of `whole`, also if a run ends before its kill; the next run then starts
    anew.
    """
    rng, hits = random.Random(n_kills), 0
    while hits < n_kills:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(0, longest_s))
        process.send_signal(signal.SIGKILL)
        hits += process.wait() == -signal.SIGKILL
        if out.exists():
            assert contents(out) == contents(whole)
            shutil.rmtree(out) if out.is_dir() else out.unlink()


def kill_when(command: list[str], is_time: Callable[[], bool]):
    """Kill a command with SIGKILL as soon as `is_time()`, and before it ends."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_while_running(process, is_time)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def check_the_end(result: subprocess.CompletedProcess, out: Path, whole: Path):
    """A command must have succeeded; its output must be that of `whole`, with nothing beside."""
    assert result.returncode == 0, result.stderr
    assert contents(out) == contents(whole)
    assert not out.with_name(f"{out.name}.partial").exists()
