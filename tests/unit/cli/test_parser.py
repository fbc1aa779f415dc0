"""The list of commands, and the parser's errors."""

import argparse
import re
import subprocess
import sys

import pytest

from gpt2np.cli.main import COMMANDS, create_parser, import_command, run
from gpt2np.cli.parser import spelled

NAMES = {import_command(name).__name__ for name in COMMANDS}


def test_the_list_of_commands_imports_none_of_them(capsys):
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name in NAMES}
    try:
        with pytest.raises(SystemExit):
            run(["--help"])
        assert not NAMES & sys.modules.keys()
    finally:
        sys.modules.update(before)
    listed = capsys.readouterr().out
    assert max(map(len, listed.splitlines())) <= 80
    for name, summary in COMMANDS.items():
        assert f"  {name:<17}{summary}\n" in listed


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_fits_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        run([name, "--help"])
    assert not end.value.code
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_help_and_version_need_no_numpy():
    lines = [["--help"], ["--version"], []]
    lines += [[name, "--help"] for name in ("tokenize", "encode", "train-tokenizer")]
    code = f"""
import sys
from contextlib import suppress
sys.modules["numpy"] = None
from gpt2np.cli.main import run
for arguments in {lines}:
    with suppress(SystemExit):
        run(arguments)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") >= 4


def test_an_unknown_command_suggests_the_most_similar(capsys):
    for name, hint in (("generat", "; did you mean 'generate'?"), ("nope", "")):
        with pytest.raises(SystemExit) as end:
            run([name, "x"])
        message = f"gpt2np: error: there is no command '{name}'{hint} (try gpt2np --help)\n"
        assert (end.value.code, capsys.readouterr().err) == (2, message)


@pytest.mark.parametrize(
    ("command", "program", "message"),
    [
        ("generate a --top-q 3", "generate", "option '--top-q'; did you mean '--top-p'?"),
        ("parity record a --prompts x", "parity record", "option '--prompts'; did you mean '--pro"),
        ("score x --contxt=5", "score", "option '--contxt=5'; did you mean '--context'?"),
        ("generate one two", "generate", "argument 'two'; quote a text of several words"),
    ],
)
def test_an_unknown_option_suggests_one_of_its_command(capsys, command, program, message):
    with pytest.raises(SystemExit) as end:
        run(command.split())
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1
    assert error.startswith(f"gpt2np {program}: error: unrecognized {message}")
    assert error.endswith(f"(try gpt2np {program} --help)\n")


def test_the_help_of_generate_begins_with_common_options(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--help"])
    common, more = capsys.readouterr().out.split("\nPrompt:\n")
    assert "--temperature X" in common and "--typical-p" not in common
    assert "--temperature X" not in more and "--typical-p" in more


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_an_option_is_one_short_sentence(command):
    parsers = [create_parser({command: import_command(command)})]
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif action.help and action.help != argparse.SUPPRESS:
                text = re.sub(r" \(.*\)$", "", action.help)
                assert len(text.split()) < 25 and ". " not in text, text


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`seed=5` and `top_k` contradict", "--seed 5 and --top-k contradict"),
        ("prompt is 'a `seed` b'; set `seed`", "prompt is 'a `seed` b'; set --seed"),
        ("give `force=True`, `dtype='float64'`", "give --force, --dtype float64"),
    ],
)
def test_arguments_in_backticks_are_spelled_as_options(message, shown):
    assert spelled(message) == shown
