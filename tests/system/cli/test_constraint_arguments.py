"""Choices and regexes on the command line."""

import regex
from helpers.command_line import run_here


def generate(*arguments):
    return run_here("generate", "--model", "bundled", *arguments)


def test_on_the_command_line():
    result = generate(
        "Was it", "--no-echo", "--choice", " a fox", "--choice", " a 狐", "--seed", "1"
    )
    assert result.returncode == 0 and result.stdout.rstrip("\n") in (" a fox", " a 狐")
    assert "finish reason: stop" in result.stderr
    result = generate("--choice", " yes", "--choice", " no", "Is it so?", "--seed", "1")
    assert result.stdout.rstrip("\n") in ("Is it so? yes", "Is it so? no")
    result = generate("It is", "--no-echo", "--regex", r" \d{2}:\d\d", "--seed", "1")
    assert result.returncode == 0 and regex.fullmatch(r" \d{2}:\d\d\n", result.stdout)
    result = generate("It is", "--regex", r"[a-z ]{99,}", "-n", "3", "--seed", "1")
    assert result.returncode == 2 and not result.stdout
    assert "the match with the fewest bytes needs 99" in result.stderr
