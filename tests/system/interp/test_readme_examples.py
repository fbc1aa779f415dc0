"""The README's section 'See inside': its command and code print the documented output."""

import re
import shlex
import subprocess
import sys

from helpers.paths import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## See inside\n")[2].partition("\n## ")[0]


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)[1]


def test_the_command_s_output_is_real(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command, _, shown = block("console").partition("\n")
    arguments = ["-m", *shlex.split(command.removeprefix("$ "))]
    result = subprocess.run([sys.executable, *arguments], capture_output=True, cwd=CHECKOUT)
    lines = result.stdout.decode().splitlines()
    assert [line.rstrip() for line in lines] == shown.splitlines()


def test_the_code_s_output_is_real(capsys):
    exec(block("python"), {})
    assert capsys.readouterr().out == block("text")
