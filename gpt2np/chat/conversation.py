"""Messages of a conversation, as text for a model and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2np.data.files import LARGE_JSON_BYTES, atomic_write_text, read_json_object
from gpt2np.errors import InvalidArgumentError, short_repr


@dataclass
class Exchange:
    """A message of the user and the model's answer; None before the model has answered."""

    message: str
    answer: str | None = None


@dataclass
class Conversation:
    """Exchanges between user and model; the last one may lack an answer.

    Attributes:
        system: the system message, None without one.
        exchanges: in order.
    """

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, start: int = 0) -> list[dict[str, str]]:
        """Return messages with role and content: the system message, then exchanges from `start`.

        The format is that of chat templates and of OpenAI's API.
        """
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in self.exchanges[start:]:
            messages.append({"role": "user", "content": exchange.message})
            if exchange.answer is not None:
                messages.append({"role": "assistant", "content": exchange.answer})
        return messages

    def joined_text(self) -> str:
        """Join all messages and answers to one text, for a base model.

        A space separates an answer from the next message where neither has white space.
        """
        text = self.system or ""
        for exchange in self.exchanges:
            message = exchange.message
            adjoins = text and message and not text[-1].isspace() and not message[0].isspace()
            text += (" " if adjoins else "") + message + (exchange.answer or "")
        return text

    def save(self, path: Path) -> int:
        """Write the messages to a JSON file; returns their number.

        Raises:
            InvalidArgumentError: the file can't be written.
        """
        messages = self.messages()
        content = json.dumps({"messages": messages}, ensure_ascii=False, indent=1)
        try:
            atomic_write_text(path, content + "\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidArgumentError(f"can't write {path}: {reason}") from error
        return len(messages)


def read_conversation(path: Path) -> Conversation:
    """Read a conversation that `Conversation.save` has written.

    Raises:
        InvalidArgumentError: the file can't be read, or is not a conversation.
    """
    content = read_json_object(path, InvalidArgumentError, max_bytes=LARGE_JSON_BYTES)
    messages = content.get("messages")
    if not isinstance(messages, list):
        raise InvalidArgumentError(f'{path} is not a conversation: expected a list "messages"')
    return parse_conversation(messages, str(path))


def parse_conversation(messages: Sequence[Any], source: str) -> Conversation:
    """Convert messages to a conversation: an optional system message, then user and assistant.

    Raises:
        InvalidArgumentError: a role is unknown or out of order; names `source` and the message.
    """
    conversation = Conversation()
    for number, message in enumerate(messages, 1):
        role, content = _parse_message(message, f"{source}: message {number}")
        last = conversation.exchanges[-1] if conversation.exchanges else None
        if role == "system" and number == 1:
            conversation.system = content
        elif role == "user" and (last is None or last.answer is not None):
            conversation.exchanges.append(Exchange(content))
        elif role == "assistant" and last is not None and last.answer is None:
            last.answer = content
        else:
            raise InvalidArgumentError(
                f"{source}: message {number} has the role {role!r} out of order; expected an "
                "optional system message, then user and assistant in turn"
            )
    return conversation


def _parse_message(message: Any, name: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        raise InvalidArgumentError(f"{name} must have a role and a content, both strings")
    role = message.get("role")
    if role not in ("system", "user", "assistant"):
        raise InvalidArgumentError(
            f"{name} has the role {short_repr(role)}; expected system, user or assistant"
        )
    return role, message["content"]
