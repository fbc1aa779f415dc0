"""Input of a chat: messages of one or more lines, and slash commands such as /set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt2np.chat.session import UNSUPPORTED_OPTIONS, read_messages, write_messages
from gpt2np.chat.template import check_special_tokens
from gpt2np.errors import InvalidArgumentError, counted
from gpt2np.generation.sampling import new_seed

if TYPE_CHECKING:
    from gpt2np.chat.session import ChatSession

FENCE = '"""'

ReadLine = Callable[[bool], str | None]
"""Returns a line without its newline, None at the end; the argument is True within a message."""


class ChatInput(NamedTuple):
    """User input: a message, or a slash command with its "/"."""

    text: str
    is_command: bool = False


def read_input(read_line: ReadLine) -> ChatInput | None:
    """Read the next message or command; returns None at the end of the input.

    A line that starts with "/" is a command. A message of several lines stands between two fences
    (`FENCE`, three double quotes). A line that contains only a fence is not part of the message.
    The end of the input ends a message, too.
    """
    line = read_line(False)
    if line is None:
        return None
    if not line.lstrip().startswith(FENCE):
        return ChatInput(line, is_command=line.startswith("/"))
    lines: list[str] = []
    line, fence = line.lstrip().removeprefix(FENCE), ""
    while line is not None and not fence:
        text, fence, _ = line.partition(FENCE)
        lines.append(text)
        line = None if fence else read_line(True)
    first = 0 if lines[0] else 1
    last = len(lines) - 1 if fence and not lines[-1] else len(lines)
    return ChatInput("\n".join(lines[first:last]))


QUIT = "quit"
RETRY = "retry"


class Command(NamedTuple):
    """A slash command, with the syntax of its arguments and a description for /help.

    `function(session, arguments)` returns a message for the user. Instead, `function` can be QUIT
    or RETRY, which `run_command` returns to the caller.
    """

    arguments: str
    help: str
    function: Callable[[ChatSession, str], str] | str


def run_command(session: ChatSession, line: str) -> str:
    """Run a slash command such as "/set temperature 0.7".

    Returns a message for the user, or QUIT or RETRY, which the caller executes. Raises
    InvalidArgumentError if the command is unknown, its arguments are invalid, or a file can't be
    read or written.
    """
    name, _, text = line.removeprefix("/").partition(" ")
    if name not in COMMANDS:
        raise InvalidArgumentError(f"unknown command /{name}; /help lists the commands")
    function = COMMANDS[name].function
    return function if isinstance(function, str) else function(session, text.strip())


def _set(session: ChatSession, text: str) -> str:
    name, _, value_text = text.partition(" ")
    name = name.replace("-", "_")
    names = [f.name for f in fields(session.lm.defaults) if f.name not in UNSUPPORTED_OPTIONS]
    if not name:
        options = session.resolve_options(session.options)
        lines = [f"{n}: {getattr(options, n)}" for n in names if n != "seed"]
        return "\n".join([*lines, f"seed: {session.seed} (next answer)"])
    if name not in names:
        raise InvalidArgumentError(
            f"unknown option {name}; the options are {', '.join(sorted(names))}"
        )
    if not value_text.strip():
        raise InvalidArgumentError(f"/set {name} needs a value, as in /set temperature 0.7")
    # "none" is a value of the option `draft`; for other options it means the default.
    value: Any = value_text.strip() if name == "draft" else _parse_value(value_text.strip())
    if name == "seed":
        session.resolve_options({"seed": value})  # raises an error for an invalid seed
        session.seed = new_seed() if value is None else value
        return f"seed: {session.seed}"
    changed = {**session.options, name: value}
    if value is None:
        del changed[name]
    resolved = session.resolve_options(changed)
    session.options = changed
    return f"{name}: {getattr(resolved, name) if value is None else value}"


def _parse_value(text: str) -> Any:
    """Parse an option's value: "none" as None, JSON as a JSON value, other text as a string."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _system(session: ChatSession, text: str) -> str:
    session.set_system(text)
    return "system message set" if text else "system message removed"


def _undo(session: ChatSession, text: str) -> str:
    while session.messages and session.messages[-1]["role"] != "system":
        message = session.messages.pop()
        if message["role"] == "user":
            content = message["content"]
            return f"removed: {content if len(content) < 60 else content[:57] + '...'}"
    raise InvalidArgumentError("the conversation is empty")


def _clear(session: ChatSession, text: str) -> str:
    session.messages = [m for m in session.messages if m["role"] == "system"]
    return "conversation cleared" + ("; the system message is kept" if session.messages else "")


def _save(session: ChatSession, text: str) -> str:
    write_messages(session.messages, _parse_path(text, "/save"))
    return f"{counted(len(session.messages), 'message')} in {text}"


def _load(session: ChatSession, text: str) -> str:
    messages = read_messages(_parse_path(text, "/load"))
    if session.template:
        check_special_tokens(messages, session.lm.tokenizer.special_tokens)
    session.messages = messages
    return f"{counted(len(messages), 'message')} from {text}"


def _parse_path(text: str, command: str) -> Path:
    if not text:
        raise InvalidArgumentError(f"{command} needs a file name")
    return Path(text)


def _help(session: ChatSession, text: str) -> str:
    lines = [f"{f'/{name} {c.arguments}':22}{c.help}" for name, c in COMMANDS.items()]
    lines += [
        'Put """ around the text to write several lines.',
        "Press Ctrl-C to stop an answer, Ctrl-D to exit.",
    ]
    return "\n".join(lines)


COMMANDS = {
    "set": Command("[NAME VALUE]", "Set an option (none: default), or list all options", _set),
    "system": Command("[TEXT]", "Set or remove the system message", _system),
    "retry": Command("", "Generate another answer to the last message", RETRY),
    "undo": Command("", "Remove the last message and its answer", _undo),
    "clear": Command("", "Remove all messages and answers", _clear),
    "save": Command("FILE", "Save the conversation to a JSON file", _save),
    "load": Command("FILE", "Load a saved conversation", _load),
    "help": Command("", "Show this list", _help),
    "quit": Command("", "Exit", QUIT),
}
