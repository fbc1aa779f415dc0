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

_FORK_FOR_EACH_LINE = """
import importlib, json, os, signal, ssl, sys
import gpt2np.cli.info, gpt2np.cli.generate, gpt2np.cli.tokenize
import gpt2np.language_model, huggingface_hub.file_download, huggingface_hub.hf_api
import gpt2np.cli.main, gpt2np.hub.download, huggingface_hub._snapshot_download, numpy.random
from gpt2np.__main__ import main

context = ssl.create_default_context()  # its certificates take longer to read than all else
ssl.create_default_context = lambda *_, **__: context

for line in sys.stdin:
    request = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(120)  # ends a command that hangs
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
        os.dup2(os.open(name, os.O_RDWR), number)
    importlib.reload(huggingface_hub.constants)  # it reads the variables HF_*
    exec(request["patch"])
    sys.argv[1:] = request["arguments"]
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    os._exit(code)  # the interpreter's own end takes 0.1 s
"""


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
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": str(Path.cwd()),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "patch": patch,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        assert code != -signal.SIGALRM, "the command hangs"
        return CompletedProcess(arguments, code, stdout.read_text(), stderr.read_text())


@contextmanager
def forked_commands(folder: Path, environment: Mapping[str, str]) -> Iterator[ForkedCommands]:
    """Run the process to fork until the end of the `with` block."""
    command = [sys.executable, "-c", _FORK_FOR_EACH_LINE]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as server:
        yield ForkedCommands(server, folder)
        server.stdin.close()
