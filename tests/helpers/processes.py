"""Which processes run, and waiting for what they do."""

import time
from pathlib import Path


def is_running(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def children(pid):
    """Return the ids of the processes that a process has started."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for child in " ".join(path.read_text() for path in paths).split()]


def wait_while_running(process, condition):
    """Wait until `condition()`, which must be before the process ends."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
