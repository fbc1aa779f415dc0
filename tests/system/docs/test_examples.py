"""The examples of the README and of the documentation run and print the output shown."""

import re
import shlex
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest
from helpers.doc_examples import agrees, commands, read_blocks, run_command, run_python
from helpers.paths import CHECKOUT

from gpt2np import GPT2, LanguageModel
from gpt2np.cli import main as cli

PAGES = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for path in [CHECKOUT / "README.md", *CHECKOUT.glob("docs/**/*.md")]
    if not path.is_relative_to(CHECKOUT / "docs" / "source")
    and not path.is_relative_to(CHECKOUT / "docs" / "tutorial" / "walkthrough")
)
MAX_NOT_RUN = 12  # blocks of all pages that need a network, a terminal or minutes
LANGUAGES = {"python", "console", "sh", "text", "json", "html", "toml", "yaml", "ini", "dockerfile"}
LANGUAGES |= {"c", "rust", "js"}  # of engines that a reader has written


def blocks(page):
    return read_blocks((CHECKOUT / page).read_text(encoding="utf-8"))


def save_bundled(folder, n_positions):
    """Write the bundled model with a shorter context. A folder takes precedence over a name."""
    lm = LanguageModel.load("bundled")
    weights = {**lm.model.weights, "wpe.weight": lm.model.weights["wpe.weight"][:n_positions]}
    GPT2(replace(lm.model.config, n_positions=n_positions), weights).save(folder)
    lm.tokenizer.save(folder)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if {"python", "console"} & {block.language for block in blocks(p)}],
)
def test_the_examples_run_and_print_the_output_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.endswith("check_your_engine.md"):  # a prompt fills the context
        save_bundled(tmp_path / "bundled", n_positions=32)
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.reason:
            continue
        where = f"{page}, line {block.line}"
        if block.language == "python":
            needed = re.findall(r"^(?:import|from) (fastapi|httpx|openai|pandas)", block.code, re.M)
            if missing := [name for name in needed if find_spec(name) is None]:
                pytest.skip(f"{where}: no {missing[0]}")
            output = run_python(block, names)
            if block.output is not None:
                assert agrees(block.output, output), f"{where} prints:\n{output}"
        elif block.language == "console":
            for command, shown in commands(block):
                output = run_command(command, tmp_path)
                assert agrees(shown, output), f"{where}, {command} prints:\n{output}"


def gpt2np_commands(code):
    """Yield the arguments of each call of gpt2np in a block of shell commands."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|;&")
        words.whitespace_split = True
        command = []
        for word in [*words, "|"]:
            if set(word) <= set("|;&"):
                if command and command[0].endswith("gpt2np"):
                    yield [argument for argument in command[1:] if argument != ">"]
                command = []
            else:
                command.append(word)


@pytest.fixture(scope="module")
def parser():
    modules = {name: import_module(f"gpt2np.cli.{name.replace('-', '_')}") for name in cli.COMMANDS}
    return cli.create_parser(modules)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_shown_exist(page, parser, capsys):
    for block in blocks(page):
        if block.language == "sh":
            for arguments in gpt2np_commands(block.code):
                try:
                    parser.parse_args(arguments)
                except SystemExit as end:
                    assert end.code == 0, f"{page}: {arguments}: {capsys.readouterr().err}"


def test_every_block_is_run_or_says_why_not():
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page}, line {block.line}: {block.language}"
    assert sum(block.reason is not None for page in PAGES for block in blocks(page)) <= MAX_NOT_RUN
