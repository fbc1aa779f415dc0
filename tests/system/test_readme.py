"""The README says what is so: its commands are CI's, its outputs are real."""

import re
import shlex
import subprocess
import sys

import pytest
from helpers.paths import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_ci_runs_the_readmes_test_command():
    if not (CHECKOUT / ".ci" / "run").exists():
        pytest.skip("no .ci/run here")
    command = next(block.strip() for block in blocks("sh") if "pytest" in block)
    assert command in (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_opening_examples_output_is_real():
    command, _, shown = blocks("console")[0].partition("\n")
    arguments = ["-m", *shlex.split(command.removeprefix("$ "))]
    result = subprocess.run([sys.executable, *arguments], capture_output=True, cwd=CHECKOUT)
    assert result.stdout.decode().split() == shown.split()  # the README's lines are folded


def test_the_library_example_runs(capsys):
    exec(blocks("python")[0], {})
    text, ids, shape = capsys.readouterr().out.rsplit("\n", 3)[:3]
    assert len(text) > 50 and ids.startswith("[") and shape == "(3, 4096)"


def test_the_decoding_example_runs(capsys):
    names = {}
    exec(blocks("python")[0], names)
    capsys.readouterr()
    exec(blocks("python")[1], names)
    out = capsys.readouterr().out
    assert "TokenLogprob(id=" in out and ("\nstop " in out or "\nlength " in out)


def test_the_tokenizers_example_runs(capsys):
    exec(blocks("python")[2], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("('l', 'ittle')") and len(lines) == 12


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (CHECKOUT / target).exists(), target
