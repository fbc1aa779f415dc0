"""A server in a process of its own."""

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE

# Forks a process that has imported what `gpt2np serve` imports, which takes a second.
_FORK_OR_WAIT_FOR_EACH_LINE = """
import json, os, sys
import gpt2np.cli.serve, gpt2np.language_model, gpt2np.runtime.process_group, gpt2np.server.run
import pydantic.v1
from gpt2np.__main__ import main

for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, int):
        pid, status = os.waitpid(request, os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    elif not (answer := os.fork()):
        break
    print(json.dumps(answer), flush=True)
else:
    sys.exit()
sys.argv[1:], environment, folder, log, code = request
os.environ.clear()
os.environ.update(environment)
os.chdir(folder)
for number, name in enumerate((os.devnull, os.devnull, log)):
    os.dup2(os.open(name, os.O_RDWR), number)
exec(code)
sys.exit(main())
"""


@functools.cache
def _forking() -> Callable[[object], int | None]:
    """Start the process to fork; return a function that sends a request and reads the answer."""
    command = [sys.executable, "-c", _FORK_OR_WAIT_FOR_EACH_LINE]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)

    def ask(request: object) -> int | None:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return ask


class Fork:
    """A forked process, with methods of `subprocess.Popen`."""

    def __init__(self, request: object) -> None:
        self.pid, self.code = _forking()(request), None

    def send_signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def wait(self, timeout: float = 20) -> int:
        deadline = time.monotonic() + timeout
        while self.code is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gpt2np serve", timeout)
            time.sleep(0.01)
            self.code = _forking()(self.pid)
        return self.code


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
    process = Fork([command, {**os.environ}, str(Path.cwd()), str(log), before])
    try:
        while not (found := re.search(r" at (http://\S+)\n", log.read_text())):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                raise RuntimeError(f"the server ended: {log.read_text()}")
        yield ServerProcess(process, found[1], log)
    finally:
        process.kill()
        process.wait()
