"""The reference pages that follow from the code: the help of all commands, and the options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpt2np.cli.main import COMMANDS
from gpt2np.generation.options import GenerationOptions
from gpt2np.options import meaning, options_of

REFERENCE = Path(__file__).parents[1] / "reference"
COMMANDS_HEAD = """\
# Commands

All commands print the result to stdout and everything else to stderr. The exit code is 0 for
success, 1 if the work could not be done, 2 for wrong usage, and 130 after Ctrl-C. If a path is not
UTF-8, an invalid byte such as 0xff is printed as `\\udcff`."""
OPTIONS_HEAD = """\
# Generation options

Each option is a keyword argument of `LanguageModel.generate` and similar methods, and a field of
`GenerationOptions`. The command line writes it with hyphens: `top_k` is `--top-k`. HTTP requests
take most options, some under OpenAI's names (see the guide's page *Server*)."""


def help_of(*command: str) -> str:
    """Return what `gpt2np COMMAND --help` prints, in 100 columns."""
    arguments = [sys.executable, "-m", "gpt2np", *command, "--help"]
    variables = {**os.environ, "COLUMNS": "102", "NO_COLOR": "1"}
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", env=variables)
    return done.stdout.rstrip()


def commands_page() -> str:
    """Return the help of each command and subcommand, in sections."""
    sections = [COMMANDS_HEAD]
    for name in COMMANDS:
        text = help_of(name)
        sections.append(f"## {name}\n\n```text\n{text}\n```")
        for subcommand in ("record", "check") if name == "parity" else ():
            text = help_of(name, subcommand)
            sections.append(f"### {name} {subcommand}\n\n```text\n{text}\n```")
    return "\n\n".join(sections) + "\n"


def options_page() -> str:
    """Return the names, defaults and meanings of the generation options."""
    sections, group = [OPTIONS_HEAD], ""
    for name, option in options_of(GenerationOptions).items():
        if option.group != group:
            group = option.group
            sections.append(f"## {group}")
        sections.append(f"`{name} = {option.default!r}`\n: {meaning(GenerationOptions, name)}")
    return "\n\n".join(sections) + "\n"


def make_pages(app: Any) -> None:
    """Write the pages."""
    for name, text in {"commands.md": commands_page(), "options.md": options_page()}.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", make_pages)
    return {"parallel_read_safe": True}
