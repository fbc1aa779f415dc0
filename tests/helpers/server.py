"""A server in a process of its own."""

import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE

from helpers.forked_command import BECOME, ask

# Forks a process that has imported what `gpt2np serve` imports, which takes a second.
_FORK_OR_WAIT_FOR_EACH_LINE = """
import gpt2np.cli.serve, gpt2np.language_model, gpt2np.runtime.process_group, gpt2np.server.run
import pydantic.v1  # which each app imports

for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, int):
        pid, status = os.waitpid(request, os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    elif not (answer := os.fork()):
        become(*request)
        sys.exit(main())
    print(json.dumps(answer), flush=True)
"""


@functools.cache
def _forking() -> subprocess.Popen:
    command = [sys.executable, "-c", BECOME + _FORK_OR_WAIT_FOR_EACH_LINE]
    pipes = {"stdin": PIPE, "stdout": PIPE, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True)  # without Ctrl-C


class Fork:
    """A forked process, with methods of `subprocess.Popen`."""

    def __init__(self, request: object) -> None:
        self.pid, self.returncode = ask(_forking(), request), None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ask(_forking(), self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def wait(self, timeout: float = 20) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gpt2np serve", timeout)
            time.sleep(0.01)
        return self.returncode


@dataclass
class ServerProcess:
    """A running server: its process, its URL, and the file that its stderr goes to."""

    process: Fork
    url: str
    log: Path


@contextmanager
def running_server(folder: Path, *arguments: str, before: str = "") -> Iterator[ServerProcess]:
    """Run `gpt2np serve` on a free port until the end of the `with` block.

    The new process executes the Python code `before` first.
    """
    log = folder / "server.log"
    log.write_text("")
    command = ("serve", "--port", "0", *arguments)
    process = Fork([command, {**os.environ}, str(Path.cwd()), os.devnull, str(log), before])
    try:
        while not (found := re.search(r" at (http://\S+)\n", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended: {log.read_text()}")
            time.sleep(0.05)
        yield ServerProcess(process, found[1], log)
    finally:
        process.kill()
        process.wait()
