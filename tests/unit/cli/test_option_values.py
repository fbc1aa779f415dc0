"""The value "--" of every option of every command, on each supported version of Python."""

import argparse
import sys
from importlib import import_module

import pytest

from gpt2np.cli.main import COMMANDS, create_parser, run

MODULES = {name: import_module(f"gpt2np.cli.{name.replace('-', '_')}") for name in COMMANDS}
NAMES = {module.__name__ for module in MODULES.values()}


def parsers(parser, path=()):
    """Yield each command's words and parser, with those of subcommands such as `parity check`."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from parsers(child, (*path, name))


PARSERS = dict(parsers(create_parser(MODULES)))
CASES = [
    (path, option)
    for path, parser in PARSERS.items()
    for action in parser._actions
    for option in action.option_strings
    if option.startswith("--")
]


@pytest.mark.parametrize(("path", "option"), CASES, ids=[" ".join((*p, o)) for p, o in CASES])
def test_two_dashes_are_a_value_or_a_wrong_value(path, option, capsys):
    """The value is accepted, or there is an error of one line; no other exception."""
    parser = PARSERS[path]
    for action in parser._actions:
        action.required = False
        if not action.option_strings:
            action.nargs = "*"
    action = parser._option_string_actions[option]
    try:
        args, _ = parser.parse_known_args([f"{option}=--"])
    except SystemExit as end:
        assert end.code in (0, 2)
        assert capsys.readouterr().err.count("\n") <= 1
    else:
        value = getattr(args, action.dest)
        assert [f"{v}" for v in (value if isinstance(value, list) else [value])] == ["--"]


def test_two_dashes_can_stop_a_text():
    args = create_parser(MODULES).parse_args(["generate", "The", "--stop=--", "--stop", "x"])
    assert args.stop == ["--", "x"]


def test_the_list_of_commands_imports_none_of_them(capsys):
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name in NAMES}
    try:
        with pytest.raises(SystemExit):
            run(["--help"])
        assert not NAMES & sys.modules.keys()
    finally:
        sys.modules.update(before)
    listed = " ".join(capsys.readouterr().out.split())
    for name, module in MODULES.items():
        summary = module.__doc__.splitlines()[0].removesuffix(".")
        assert f" {name} {summary}" in listed
