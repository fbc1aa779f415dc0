"""Runs the code blocks of a Markdown page and returns their outputs."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from helpers.command_line import run_here
from helpers.paths import CHECKOUT

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """A code block of a page.

    Attributes:
        language: the word after the opening fence.
        code: the text between the fences.
        reason: why the page says that the block is not run, if it says so.
        output: the content of the `text` block that directly follows, if any.
        line: the line number of the block.
    """

    language: str
    code: str
    reason: str | None
    output: str | None
    line: int


def read_blocks(text: str) -> list[Block]:
    """Return the code blocks of a page; a `text` block belongs to the block before it."""
    blocks: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        follows = not text[end : match.start()].strip()
        if match["language"] == "text" and blocks and follows:
            blocks[-1].output = match["code"]
        else:
            line = text.count("\n", 0, match.start("language")) + 1
            blocks.append(Block(match["language"], match["code"], match["reason"], None, line))
        end = match.end()
    return blocks


def run_python(block: Block, names: dict[str, object]) -> str:
    """Execute a Python block; return what it prints."""
    out = io.StringIO()
    padded = "\n" * block.line + block.code  # tracebacks show the page's line numbers
    with contextlib.redirect_stdout(out):
        exec(compile(padded, "page", "exec"), names)
    return out.getvalue()


def run_command(command: str, folder: Path) -> str:
    """Run a shell command in a folder; return its stdout. Only a shell's syntax needs a shell."""
    variables = {"COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
    if re.fullmatch(r"gpt2np [^|&;<>$*?#~`()]+", command):
        words = shlex.split(command)[1:]
        with patch("huggingface_hub.constants.HF_HUB_OFFLINE", True):  # may be imported already
            result = run_here(*words, folder=folder, **variables)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        return result.stdout
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "gpt2np"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpt2np "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        **variables,
    }
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=120
    )
    if result.returncode and not re.search(r"; echo \$\?|2>&1", command):
        raise AssertionError(f"{command}: {result.stderr.decode()}")
    return result.stdout.decode()


def commands(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that the page shows."""
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def agrees(shown: str, output: str) -> bool:
    """Compare the output that a page shows with the real output.

    `…` in `shown` stands for any text. A page may fold lines of more than 100 characters.
    """
    lines = output.splitlines()
    if any(len(line) > 100 for line in lines):
        shown, output = " ".join(shown.split()), " ".join(output.split())
    else:
        shown = "\n".join(line.rstrip() for line in shown.splitlines())
        output = "\n".join(line.rstrip() for line in lines)
    pattern = ".*?".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None
