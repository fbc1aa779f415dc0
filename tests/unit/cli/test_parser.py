"""The list of commands, and the parser's errors."""

import argparse
import re
import subprocess
import sys

import pytest

from gpt2np.cli.main import COMMANDS, create_parser, import_command, run
from gpt2np.cli.parser import Parser, spelled

MODULES = {name: import_command(name) for name in COMMANDS}
NAMES = {module.__name__ for module in MODULES.values()}


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


@pytest.mark.parametrize("command", ["encode", "parity check", "serve"])
def test_help_all_of_other_commands_is_their_help(capsys, command):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            run([*command.split(), option])
        assert end.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "--help-all" not in texts[0]


def test_help_shows_common_options_and_help_all_shows_all(capsys):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            run(["generate", option])
        assert end.value.code == 0
        texts.append(capsys.readouterr().out)
    common, all_options = texts
    assert "--temperature X" in common and "--typical-p" not in common
    assert common.splitlines()[-1] == "gpt2np generate --help-all shows all options."
    assert "--temperature X" in all_options and "--typical-p" in all_options


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
        ("can't read `seed`.txt; set `seed`", "can't read `seed`.txt; set --seed"),
    ],
)
def test_backticks_of_the_user_are_kept(message, shown, monkeypatch):
    monkeypatch.setattr(Parser, "innermost", create_parser(MODULES))
    monkeypatch.setattr(Parser, "words", ["generate", "--file", "`seed`.txt"])
    monkeypatch.setattr(Parser, "option_names", lambda parser: {"--seed", "--top-k"})
    assert spelled(message) == shown
