"""Chat templates: messages → the text that a model has been trained to continue.

A template is a Jinja program from the model's files. It runs in jinja2's sandbox, with what
`transformers` gives it (`apply_chat_template`, version 5): the filter `tojson`, the functions
`raise_exception` and `strftime_now`, `{% break %}`, `{% generation %}`, the special tokens as
`bos_token`, `eos_token`, …, and `tools` and `documents`, which are none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.data.files import SMALL_JSON_BYTES, check_is_file, read_json_object
from gpt2np.errors import GPT2NPError, InvalidArgumentError, TokenizerError, short_repr
from gpt2np.hub.model_files import CHAT_TEMPLATE
from gpt2np.tokenizer.special_tokens import CONFIG_FILE

if TYPE_CHECKING:
    from jinja2 import Template

_SAFE_JINJA2 = (3, 1, 6)  # one could get out of the sandbox of older ones

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatTemplate:
    """A model's template.

    Attributes:
        origin: the file that it comes from, for messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Compile it; `special_tokens`: role, such as "eos_token", → text.

        Raises:
            GPT2NPError: jinja2 is not installed, or too old.
            TokenizerError: it is no template.
        """
        self.origin = origin
        self._template = _compiled(source, origin)
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, up to where the model's answer begins.

        Args:
            messages: each has a `role`, one of ROLES, and a `content`.
            add_generation_prompt: without it, the text ends with the last message.

        Raises:
            InvalidArgumentError: a message is none, or the template refuses the conversation.
            TokenizerError: the template fails.
        """
        from gpt2np.chat.environment import RefusedError

        content = {
            "messages": [_checked(message, number) for number, message in enumerate(messages, 1)],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._special_tokens,
        }
        try:
            return self._template.render(content)
        except RefusedError as error:
            raise InvalidArgumentError(
                f"the chat template refuses this conversation: {error}"
            ) from error
        except Exception as error:  # whatever somebody else's program may raise
            what = str(error) or type(error).__name__
            raise TokenizerError(f"{self.origin}: the chat template fails: {what}") from error


def _checked(message: Mapping[str, str], number: int) -> dict[str, str]:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise InvalidArgumentError(f"message {number} must have a role and a content, both texts")
    if message.get("role") not in ROLES:
        raise InvalidArgumentError(
            f"message {number} has the role {short_repr(message.get('role'))}; it must be one of "
            f"{', '.join(ROLES)}"
        )
    return dict(message)


def read_chat_template(
    folder: Path, special_tokens: Mapping[str, str] | None = None
) -> ChatTemplate | None:
    """The template of the model in `folder`, None if it has none.

    As in transformers 5, chat_template.jinja comes before `chat_template` in tokenizer_config.json,
    and of several there the one named "default" counts.

    Raises:
        GPT2NPError, TokenizerError: see `ChatTemplate`; or a file is damaged.
    """
    path = folder / CHAT_TEMPLATE
    if path.exists():
        return ChatTemplate(read_template_file(path), special_tokens or {}, str(path))
    path = folder / CONFIG_FILE
    found = (
        read_json_object(path, TokenizerError, max_bytes=SMALL_JSON_BYTES) if path.exists() else {}
    )
    source = found.get("chat_template")
    if isinstance(source, list):
        named = [each for each in source if isinstance(each, dict)]
        source = next(
            (each.get("template") for each in named if each.get("name") == "default"), None
        )
    if source is None:
        return None
    if not isinstance(source, str):
        raise TokenizerError(f"{path} is damaged: chat_template is {short_repr(source)}")
    return ChatTemplate(source, special_tokens or {}, str(path))


def read_template_file(path: Path) -> str:
    """The text of a file that holds a template.

    Raises:
        TokenizerError: it can't be read, or is none.
    """
    try:
        check_is_file(path, TokenizerError)
        if path.stat().st_size > SMALL_JSON_BYTES:
            raise TokenizerError(
                f"{path} has more than {SMALL_JSON_BYTES:,} bytes; it is no chat template"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TokenizerError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: not UTF-8 text") from error


def _compiled(source: str, origin: str) -> Template:
    try:
        import jinja2
    except ImportError as error:
        raise GPT2NPError(
            "chat templates need the package jinja2: pip install 'gpt2np[chat]'"
        ) from error
    if tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3])) < _SAFE_JINJA2:
        raise GPT2NPError(
            f"jinja2 {jinja2.__version__} is not safe for chat templates; install 3.1.6 or newer"
        )
    from gpt2np.chat.environment import environment

    try:
        return environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(
            f"{origin}: the chat template is damaged: line {error.lineno}: {error.message}"
        ) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        what = str(error) or type(error).__name__
        raise TokenizerError(f"{origin}: the chat template is damaged: {what}") from error
