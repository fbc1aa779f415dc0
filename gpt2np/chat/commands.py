"""What a line that begins with / does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt2np.chat.conversation import read_conversation
from gpt2np.chat.session import NO_OPTIONS
from gpt2np.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.chat.session import ChatSession

QUIT = "quit"
RETRY = "retry"


class Command(NamedTuple):
    """A command: what follows its name, what it does in words, and the function.

    The function takes the session and what follows the name, and returns what to tell the user; or
    it is QUIT or RETRY, which are up to who reads the lines.
    """

    arguments: str
    meaning: str
    function: Callable[[ChatSession, str], str] | str


def _set(session: ChatSession, rest: str) -> str:
    name, _, text = rest.partition(" ")
    name = name.replace("-", "_")
    if not name:
        return _show_options(session)
    known = {each.name for each in fields(session.lm.defaults)} - {*NO_OPTIONS}
    if name not in known:
        raise InvalidArgumentError(
            f"there is no option {name}; there are {', '.join(sorted(known))}"
        )
    if not text.strip():
        raise InvalidArgumentError(f"/set {name} needs a value, as in /set temperature 0.7")
    value = _value(text.strip())
    if name == "seed":
        session.chosen({"seed": value})  # raises if it is none
        session.seed = session.seed if value is None else value
        return f"seed: {session.seed}"
    changed = {**session.options, name: value}
    if value is None:
        del changed[name]
    chosen = session.chosen(changed)
    session.options = changed
    return f"{name}: {getattr(chosen, name) if value is None else value}"


def _value(text: str) -> Any:
    """A number, a list, a text in quotes, true, false, none; or else the text itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _show_options(session: ChatSession) -> str:
    options = session.chosen(session.options)
    names = [each.name for each in fields(options) if each.name not in (*NO_OPTIONS, "seed")]
    shown = [f"{name}: {getattr(options, name)}" for name in names]
    return "\n".join([*shown, f"seed: {session.seed} (of the next answer)"])


def _show(session: ChatSession, rest: str) -> str:
    context = session.lm.model.config.n_positions
    kind = session.template.origin if session.template else "none, a model that continues texts"
    return (
        f"model: {session.lm.name}\nchat template: {kind}\n"
        f"exchanges: {len(session.conversation.exchanges)}\n"
        f"tokens: {session.known} of {context} computed"
    )


def _system(session: ChatSession, rest: str) -> str:
    if session.template is None:
        raise InvalidArgumentError(f"{session.lm.name} has no chat template, so no system message")
    session.conversation.system = rest or None
    return "system message set" if rest else "no system message"


def _undo(session: ChatSession, rest: str) -> str:
    if not session.conversation.exchanges:
        raise InvalidArgumentError("nothing has been said yet")
    said = session.conversation.exchanges.pop().said
    return f"taken back: {said if len(said) < 60 else said[:57] + '...'}"


def _clear(session: ChatSession, rest: str) -> str:
    session.conversation.exchanges.clear()
    return "all forgotten" + (" but the system message" if session.conversation.system else "")


def _save(session: ChatSession, rest: str) -> str:
    path = _path(rest, "/save")
    if path.exists() and path not in session.files:
        raise InvalidArgumentError(f"{path} exists already; choose another name, or remove it")
    count = session.conversation.save(path)
    session.files.add(path)
    return f"{count} messages in {path}"


def _load(session: ChatSession, rest: str) -> str:
    path = _path(rest, "/load")
    conversation = read_conversation(path)
    session.check(conversation)
    session.conversation = conversation
    session.files.add(path)
    return f"{len(session.conversation.messages())} messages from {path}"


def _path(rest: str, name: str) -> Path:
    if not rest:
        raise InvalidArgumentError(f"{name} needs the name of a file")
    return Path(os.path.expanduser(rest))  # noqa: PTH111 (Path's raises for an unknown user)


def _help(session: ChatSession, rest: str) -> str:
    lines = [f"{f'/{name} {each.arguments}':22}{each.meaning}" for name, each in COMMANDS.items()]
    return "\n".join(
        [
            *lines,
            'A \\ at a line\'s end goes on in the next line, and so does all between two """.',
            "//text says /text. Ctrl-C stops an answer, Ctrl-D ends the program.",
        ]
    )


COMMANDS = {
    "set": Command("NAME VALUE", "an option, as in /set top_k 5, or none; alone, show all", _set),
    "show": Command("", "the model and how much has been said", _show),
    "system": Command("TEXT", "what the model is told beforehand; alone, nothing", _system),
    "retry": Command("", "another answer to the last text", RETRY),
    "undo": Command("", "take back the last text and its answer", _undo),
    "clear": Command("", "begin anew", _clear),
    "save": Command("FILE", "write the conversation to a JSON file", _save),
    "load": Command("FILE", "go on with a conversation from such a file", _load),
    "help": Command("", "this list; also /?", _help),
    "quit": Command("", "end; also /exit, /bye", QUIT),
}
_ALSO = {"?": "help", "exit": "quit", "bye": "quit", "regenerate": "retry", "reset": "clear"}


def command(session: ChatSession, line: str) -> str:
    """Do what a line such as "/set temperature 0.7" says.

    Returns what to tell the user, or QUIT or RETRY for the caller to do.

    Raises:
        InvalidArgumentError: there is no such command, or it can't be done.
    """
    name, _, rest = line.removeprefix("/").partition(" ")
    name = _ALSO.get(name, name)
    if name not in COMMANDS:
        raise InvalidArgumentError(
            f"there is no command /{name}; /help lists them, //{name} says it"
        )
    function = COMMANDS[name].function
    try:
        return function if isinstance(function, str) else function(session, rest.strip())
    except OSError as error:
        raise InvalidArgumentError(f"/{name} {rest}: {error.strerror}") from error
