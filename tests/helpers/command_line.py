"""The command line in this process, where it starts no interpreter and imports nothing again."""

import gc
import io
import os
import signal
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from gpt2np.cli.main import run


def run_here(
    *arguments: object,
    stdin: str | bytes = b"",
    folder: Path | None = None,
    encoding: str | None = "utf-8",
    **variables: str,
) -> CompletedProcess:
    """Run a command like `subprocess.run`; where a test is about the process, it starts one.

    Args:
        arguments: the command and its arguments.
        stdin: what the command reads.
        folder: the current folder of the command.
        encoding: of what it prints; None for bytes.
        variables: environment variables.
    """
    stdin = stdin.encode() if isinstance(stdin, str) else stdin
    out, messages = io.BytesIO(), io.BytesIO()
    before, thresholds, handler = Path.cwd(), gc.get_threshold(), signal.getsignal(signal.SIGINT)
    with ExitStack() as stack:
        for name, stream in (("stdin", io.BytesIO(stdin)), ("stdout", out), ("stderr", messages)):
            wrapper = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
            stack.enter_context(mock.patch.object(sys, name, wrapper))
            stack.callback(wrapper.detach)
        stack.enter_context(mock.patch.dict(os.environ, variables))
        stack.enter_context(warnings.catch_warnings())
        stack.callback(os.chdir, before)
        stack.callback(gc.set_threshold, *thresholds)
        stack.callback(signal.signal, signal.SIGINT, handler)
        os.chdir(folder or before)
        try:
            code = run([os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in arguments])
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    streams = [stream.getvalue() for stream in (out, messages)]
    if encoding:
        streams = [stream.decode(encoding) for stream in streams]
    return CompletedProcess(arguments, code or 0, *streams)
