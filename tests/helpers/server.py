"""A server in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class ServerProcess:
    """A running server: its process, its URL, and the file that its stderr goes to."""

    process: subprocess.Popen
    url: str
    log: Path


@contextmanager
def running_server(
    folder: Path,
    *arguments: str,
    before: Callable[[], object] | None = None,
    **environment: str,
) -> Iterator[ServerProcess]:
    """Run `gpt2np serve` on a free port until the end of the `with` block.

    The new process calls `before` first.
    """
    log = folder / "server.log"
    command = [sys.executable, "-m", "gpt2np", "serve", "--port", "0", *arguments]
    with log.open("w") as stderr:
        env = {**os.environ, **environment}
        process = subprocess.Popen(command, stderr=stderr, env=env, preexec_fn=before)
    try:
        while not (found := re.search(r" at (http://\S+)\n", log.read_text())):
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"the server ended: {log.read_text()}")
        yield ServerProcess(process, found[1], log)
    finally:
        process.kill()
        process.wait()
