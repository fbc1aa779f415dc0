"""Input of a chat: messages of one or more lines, and slash commands such as /set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt2np.chat.session import UNSUPPORTED_OPTIONS, read_conversation
from gpt2np.errors import InvalidArgumentError, counted, error_reason
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

    A line that starts with "/" is a command; "//" starts a message that begins with "/". A
    backslash at the end of a line continues the message. A message of several lines can also stand
    between two fences (`FENCE`, three double quotes). The end of the input ends a message, too.
    """
    line = read_line(False)
    if line is None:
        return None
    if line.startswith("/") and not line.startswith("//"):
        return ChatInput(line, is_command=True)
    if line.lstrip().startswith(FENCE):
        return ChatInput(_read_fenced(line.lstrip().removeprefix(FENCE), read_line))
    return ChatInput(_read_continued(line[1:] if line.startswith("//") else line, read_line))


def _read_continued(line: str, read_line: ReadLine) -> str:
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        next_line = read_line(True)
        if next_line is None:
            break
        lines.append(next_line)
    return "\n".join(lines)


def _read_fenced(line: str | None, read_line: ReadLine) -> str:
    lines: list[str] = []
    fence = ""
    while line is not None and not fence:
        text, fence, _ = line.partition(FENCE)
        lines.append(text)
        line = None if fence else read_line(True)
    # A line that contains only a fence is not part of the message.
    first = 0 if lines[0] else 1
    last = len(lines) - 1 if fence and not lines[-1] else len(lines)
    return "\n".join(lines[first:last])


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
    name = _ALIASES.get(name, name)
    if name not in COMMANDS:
        raise InvalidArgumentError(
            f"unknown command /{name}; /help lists the commands, //{name} sends the text /{name}"
        )
    function = COMMANDS[name].function
    try:
        return function if isinstance(function, str) else function(session, text.strip())
    except OSError as error:
        raise InvalidArgumentError(f"/{name} {text}: {error_reason(error)}") from error


def _set(session: ChatSession, text: str) -> str:
    name, _, value_text = text.partition(" ")
    name = name.replace("-", "_")
    if not name:
        return _list_options(session)
    names = {field.name for field in fields(session.lm.defaults)} - {*UNSUPPORTED_OPTIONS}
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
    options = {**session.options, name: value}
    if value is None:
        del options[name]
    resolved = session.resolve_options(options)
    session.options = options
    return f"{name}: {getattr(resolved, name) if value is None else value}"


def _parse_value(text: str) -> Any:
    """Parse an option's value: "none" as None, JSON as a JSON value, other text as a string."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _list_options(session: ChatSession) -> str:
    options = session.resolve_options(session.options)
    excluded = (*UNSUPPORTED_OPTIONS, "seed")
    names = [field.name for field in fields(options) if field.name not in excluded]
    lines = [f"{name}: {getattr(options, name)}" for name in names]
    return "\n".join([*lines, f"seed: {session.seed} (next answer)"])


def _show(session: ChatSession, text: str) -> str:
    context = session.lm.model.config.n_positions
    template = session.template.origin if session.template else "none (base model)"
    return (
        f"model: {session.lm.name}\nchat template: {template}\n"
        f"exchanges: {len(session.conversation.exchanges)}\n"
        f"tokens: {session.n_cached} of {context} in the KV cache"
    )


def _system(session: ChatSession, text: str) -> str:
    if session.template is None:
        raise InvalidArgumentError(
            f"{session.lm.name} has no chat template; a system message needs one"
        )
    session.conversation.system = text or None
    return "system message set" if text else "system message removed"


def _undo(session: ChatSession, text: str) -> str:
    if not session.conversation.exchanges:
        raise InvalidArgumentError("the conversation is empty")
    message = session.conversation.exchanges.pop().message
    return f"removed: {message if len(message) < 60 else message[:57] + '...'}"


def _clear(session: ChatSession, text: str) -> str:
    session.conversation.exchanges.clear()
    kept = "; the system message is kept" if session.conversation.system else ""
    return f"conversation cleared{kept}"


def _save(session: ChatSession, text: str) -> str:
    path = _parse_path(text, "/save")
    if path.exists() and path not in session.files:
        raise InvalidArgumentError(f"{path} exists already; choose another name, or remove it")
    count = session.conversation.save(path)
    session.files.add(path)
    return f"{counted(count, 'message')} in {path}"


def _load(session: ChatSession, text: str) -> str:
    path = _parse_path(text, "/load")
    conversation = read_conversation(path)
    session.check_messages(conversation)
    session.conversation = conversation
    session.files.add(path)
    return f"{counted(len(session.conversation.messages()), 'message')} from {path}"


def _parse_path(text: str, command: str) -> Path:
    if not text:
        raise InvalidArgumentError(f"{command} needs a file name")
    return Path(os.path.expanduser(text))  # noqa: PTH111 (Path.expanduser fails on unknown users)


def _help(session: ChatSession, text: str) -> str:
    lines = [f"{f'/{name} {c.arguments}':22}{c.help}" for name, c in COMMANDS.items()]
    lines += [
        'End a line with \\ or put """ around the text to write several lines.',
        "Start a line with // to send a message that starts with /.",
        "Press Ctrl-C to stop an answer, Ctrl-D to exit.",
    ]
    return "\n".join(lines)


COMMANDS = {
    "set": Command("[NAME VALUE]", "Set an option (none: default), or list all options", _set),
    "show": Command("", "Show the model and the size of the conversation", _show),
    "system": Command("[TEXT]", "Set or remove the system message", _system),
    "retry": Command("", "Generate another answer to the last message", RETRY),
    "undo": Command("", "Remove the last message and its answer", _undo),
    "clear": Command("", "Remove all messages and answers", _clear),
    "save": Command("FILE", "Save the conversation to a JSON file", _save),
    "load": Command("FILE", "Load a saved conversation", _load),
    "help": Command("", "Show this list (also /?)", _help),
    "quit": Command("", "Exit (also /exit, /bye)", QUIT),
}
_ALIASES = {"?": "help", "exit": "quit", "bye": "quit", "regenerate": "retry", "reset": "clear"}
