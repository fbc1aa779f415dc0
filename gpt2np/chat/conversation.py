"""What has been said, and how it becomes the text that a model continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2np.chat.template import ChatTemplate
from gpt2np.data.files import LARGE_JSON_BYTES, atomic_write_text, read_json_object
from gpt2np.errors import InvalidArgumentError, short_repr


@dataclass
class Exchange:
    """What the user said, and the answer, if there is one yet."""

    said: str
    answer: str | None = None


@dataclass
class Conversation:
    """Exchanges, the last of which may wait for its answer.

    Attributes:
        system: what the model is told beforehand.
        exchanges: in order.
    """

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, start: int = 0) -> list[dict[str, str]]:
        """Everything as messages with a role and a content, from exchange `start` on."""
        found = [] if self.system is None else [_message("system", self.system)]
        for exchange in self.exchanges[start:]:
            found.append(_message("user", exchange.said))
            if exchange.answer is not None:
                found.append(_message("assistant", exchange.answer))
        return found

    def templated(self, template: ChatTemplate, start: int = 0) -> str:
        """The text by the model's template, from exchange `start` on."""
        return template.render(self.messages(start))

    def joined(self) -> str:
        """One text of all that was said and answered, for a model that continues texts.

        Where neither side has white space, a space stands between an answer and what is said next.
        """
        text = self.system or ""
        for exchange in self.exchanges:
            said = exchange.said
            apart = not text or not said or text[-1].isspace() or said[0].isspace()
            text += ("" if apart else " ") + said + (exchange.answer or "")
        return text

    def save(self, path: Path) -> int:
        """Write the messages as JSON; returns their number.

        Raises:
            InvalidArgumentError: the file can't be written.
        """
        messages = self.messages()
        try:
            atomic_write_text(
                path, json.dumps({"messages": messages}, ensure_ascii=False, indent=1) + "\n"
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidArgumentError(f"can't write {path}: {why}") from error
        return len(messages)


def read_conversation(path: Path) -> Conversation:
    """A conversation that `save` has written.

    Raises:
        InvalidArgumentError: the file can't be read, or holds something else.
    """
    content = read_json_object(path, InvalidArgumentError, max_bytes=LARGE_JSON_BYTES)
    messages = content.get("messages")
    if not isinstance(messages, list):
        raise InvalidArgumentError(f"{path} holds no conversation: it has no list of messages")
    return conversation_of(messages, str(path))


def conversation_of(messages: Sequence[Any], source: str) -> Conversation:
    """The conversation of messages: perhaps one of the system, then user and assistant in turn.

    Raises:
        InvalidArgumentError: another role or order; it names `source` and the message.
    """
    found = Conversation()
    for number, message in enumerate(messages, 1):
        role, content = _parts(message, f"{source}: message {number}")
        last = found.exchanges[-1] if found.exchanges else None
        if role == "system" and number == 1:
            found.system = content
        elif role == "user" and (last is None or last.answer is not None):
            found.exchanges.append(Exchange(content))
        elif role == "assistant" and last is not None and last.answer is None:
            last.answer = content
        else:
            raise InvalidArgumentError(
                f"{source}: message {number} has the role {role!r} out of turn; after a first "
                "system message, user and assistant take turns"
            )
    return found


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _parts(message: Any, name: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        raise InvalidArgumentError(f"{name} must have a role and a content, both texts")
    role = message.get("role")
    if role not in ("system", "user", "assistant"):
        raise InvalidArgumentError(
            f"{name} has the role {short_repr(role)}; it must be system, user or assistant"
        )
    return role, message["content"]
