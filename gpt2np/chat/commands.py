"""Input of a chat: messages of one or more lines, and slash commands such as /set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from gpt2np.chat.session import UNSUPPORTED_OPTIONS, ChatSession
from gpt2np.errors import InvalidArgumentError, did_you_mean

FENCE = '"""'


def read_input(read_line: Callable[[bool], str | None]) -> str | None:
    """Read the next message or command; returns None at the end of the input.

    A message of several lines stands between two fences (`FENCE`, three double quotes), or between
    a fence and the end of the input. `read_line` gets True within a message; None ends the input.
    """
    text = line = read_line(False)
    while text and line is not None and text.lstrip().startswith(FENCE) and text.count(FENCE) == 1:
        line = read_line(True)
        text += "" if line is None else f"\n{line}"
    return text


def without_fences(text: str) -> str:
    """Return a message without its fences and their line breaks."""
    if not text.lstrip().startswith(FENCE):
        return text
    return text.split(FENCE)[1].removeprefix("\n").removesuffix("\n")


QUIT, RETRY = "/quit", "/retry"

HELP = f"""\
/set NAME VALUE   Set an option, as in /set temperature 0.7; none resets it
/retry            Generate another answer to the last message
/clear            Remove all messages and answers
/help             Show this list
/quit             Exit
Put {FENCE} around the text to write several lines.
Press Ctrl-C to stop an answer, Ctrl-D to exit."""


def run_command(session: ChatSession, line: str) -> str:
    """Run a slash command such as "/set temperature 0.7".

    Returns a message for the user, or QUIT or RETRY, which the caller executes. Raises
    InvalidArgumentError if the command is unknown, or its arguments are invalid.
    """
    command, _, text = line.partition(" ")
    text = text.strip()
    if command in (QUIT, RETRY):
        return command
    if command == "/set":
        return _set(session, text)
    if command == "/clear":
        session.messages = [m for m in session.messages if m["role"] == "system"]
        return "conversation cleared"
    if command == "/help":
        return HELP
    raise InvalidArgumentError(f"unknown command {command}; /help lists the commands")


def _set(session: ChatSession, text: str) -> str:
    name, _, value_text = text.partition(" ")
    name = name.replace("-", "_")
    names = {f.name for f in fields(session.lm.defaults)} - {*UNSUPPORTED_OPTIONS}
    if name not in names:
        hint = did_you_mean(name, names) or f"; the options are {', '.join(sorted(names))}"
        raise InvalidArgumentError(f"unknown option {name}{hint}")
    if not value_text:
        raise InvalidArgumentError(f"/set {name} needs a value, as in /set temperature 0.7")
    # "none" is a value of the option `draft`; for other options it means the default.
    value: Any = value_text if name == "draft" else _parse_value(value_text)
    changed = {**session.options, name: value}
    if value is None:
        del changed[name]
    resolved = session.resolve_options(changed)
    if name == "seed":
        session.seed = resolved.seed or 0
    else:
        session.options = changed
    return f"{name}: {getattr(resolved, name)}"


def _parse_value(text: str) -> Any:
    """Parse an option's value: "none" as None, JSON as a JSON value, other text as a string."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
