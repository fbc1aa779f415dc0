"""`gpt2np` in forks of a process that has imported its packages, which takes 0.3 s of CPU time."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, CompletedProcess

# What a fork does before it calls `main`.
BECOME = """
import json, os, sys
from gpt2np.__main__ import main

def become(arguments, environment, folder, stdout, stderr, patch):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.argv[1:] = arguments
    exec(patch, globals())
"""

_FORK_FOR_EACH_LINE = """
import importlib, signal, ssl
import gpt2np.cli.info, gpt2np.cli.generate, gpt2np.cli.tokenize
import gpt2np.language_model, huggingface_hub.file_download, huggingface_hub.hf_api
import gpt2np.cli.main, gpt2np.hub.download, huggingface_hub._snapshot_download, numpy.random

context = ssl.create_default_context()  # certificates take longest; forks read no others
ssl.create_default_context = lambda *_, **__: context

for line in sys.stdin:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(120)  # ends a command that hangs
    become(*json.loads(line))
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    os._exit(code)  # the interpreter's own end takes 0.1 s
"""


def ask(process: subprocess.Popen, request: object) -> int | None:
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@dataclass
class ForkedCommands:
    """Runs commands like `subprocess.run`; where a test is about the process, it starts one."""

    _server: subprocess.Popen
    _folder: Path  # for what the command prints

    def run(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], patch: str = ""
    ) -> CompletedProcess:
        """Run a command in the current folder, after the Python code `patch`."""
        stdout, stderr = self._folder / "stdout", self._folder / "stderr"
        for file in (stdout, stderr):
            file.write_bytes(b"")
        patch = f"importlib.reload(huggingface_hub.constants)  # reads HF_*\n{patch}"
        places = str(Path.cwd()), str(stdout), str(stderr)
        code = ask(self._server, [arguments, environment, *places, patch])
        assert code != -signal.SIGALRM, "the command hangs"
        return CompletedProcess(arguments, code, stdout.read_text(), stderr.read_text())


@contextmanager
def forked_commands(folder: Path, environment: Mapping[str, str]) -> Iterator[ForkedCommands]:
    """Run the process to fork until the end of the `with` block."""
    command = [sys.executable, "-c", BECOME + _FORK_FOR_EACH_LINE]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as server:
        yield ForkedCommands(server, folder)
        server.stdin.close()
