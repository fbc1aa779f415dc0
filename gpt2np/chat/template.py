"""Chat templates: turn messages into the text that a model was trained to continue.

A template is a Jinja program from the model's files, and runs in jinja2's sandbox. As in
transformers 5, a template can use the filter `tojson`, the functions `raise_exception` and
`strftime_now`, and the tags `{% break %}` and `{% generation %}`. Special tokens are variables such
as `bos_token`; the variables `tools` and `documents` are always None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.data.files import read_bytes, read_json_object
from gpt2np.errors import GPT2NPError, InvalidArgumentError, TokenizerError, short_repr
from gpt2np.hub.model_files import CHAT_TEMPLATE_FILE
from gpt2np.limits import limits
from gpt2np.tokenizer.special_tokens import CONFIG_FILE

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_MIN_JINJA2 = (3, 1, 6)  # in older versions, templates can escape from the sandbox

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatTemplate:
    """A model's chat template. `origin` is the path of the template's file, for error messages."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Compile a template; `special_tokens` maps names such as "eos_token" to tokens.

        Raises:
            GPT2NPError: jinja2 is missing or too old.
            TokenizerError: `source` is not a valid template.
        """
        self.origin = origin
        self._template = _compile(source, origin)
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Render messages to a text. Each message has a `role` from ROLES and a `content`.

        `add_generation_prompt` appends the text that starts the model's answer.

        Raises:
            InvalidArgumentError: a message is invalid, or the template refuses the conversation.
            TokenizerError: the template raises another error.
        """
        content = {
            "messages": [
                check_message(message, f"message {i}") for i, message in enumerate(messages, 1)
            ],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._special_tokens,
        }
        try:
            return self._template.render(content)
        except TemplateRefusalError as error:
            raise InvalidArgumentError(
                f"the chat template refuses this conversation: {error}"
            ) from error
        except Exception as error:  # a template can raise any exception
            reason = str(error) or type(error).__name__
            raise TokenizerError(f"{self.origin}: the chat template fails: {reason}") from error


class TemplateRefusalError(Exception):
    """Raised when a template calls `raise_exception`."""


def check_message(message: Any, name: str) -> dict[str, str]:
    """Validate a message, called `name` in errors, and return a copy.

    Raises:
        InvalidArgumentError: `role` is not one of ROLES, or `content` is not a string.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise InvalidArgumentError(f"{name} must have a role and a content, both strings")
    if message.get("role") not in ROLES:
        raise InvalidArgumentError(
            f"{name} has the role {short_repr(message.get('role'))}; expected one of "
            f"{', '.join(ROLES)}"
        )
    return dict(message)


def read_chat_template(
    folder: Path, special_tokens: Mapping[str, str] | None = None, *, file: Path | None = None
) -> ChatTemplate | None:
    """Read the chat template of the model in `folder`; returns None if the model has no template.

    A Jinja `file` replaces the model's template. As in transformers 5, chat_template.jinja takes
    precedence over `chat_template` in tokenizer_config.json. If tokenizer_config.json has several
    templates, "default" is used.

    Raises:
        GPT2NPError, TokenizerError: the template can't be compiled (see `ChatTemplate`), or a file
            is damaged.
    """
    path = file or folder / CHAT_TEMPLATE_FILE
    if file or path.exists():
        return ChatTemplate(_read_template_file(path), special_tokens or {}, str(path))
    path = folder / CONFIG_FILE
    config = (
        read_json_object(path, TokenizerError, max_bytes=limits().max_config_bytes)
        if path.exists()
        else {}
    )
    source = config.get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        source = next((e.get("template") for e in entries if e.get("name") == "default"), None)
    if source is None:
        return None
    if not isinstance(source, str):
        raise TokenizerError(f"{path} is damaged: chat_template is {short_repr(source)}")
    return ChatTemplate(source, special_tokens or {}, str(path))


def _read_template_file(path: Path) -> str:
    data = read_bytes(path, TokenizerError, max_bytes=limits().max_config_bytes)
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: not UTF-8 text") from error


def _compile(source: str, origin: str) -> Template:
    try:
        import jinja2
    except ImportError as error:
        raise GPT2NPError(
            "chat templates need the package jinja2: pip install 'gpt2np[chat]'"
        ) from error
    if tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3])) < _MIN_JINJA2:
        raise GPT2NPError(
            f"jinja2 {jinja2.__version__} is not safe for chat templates; install 3.1.6 or newer"
        )
    try:
        return _create_environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(
            f"{origin}: the chat template is damaged: line {error.lineno}: {error.message}"
        ) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        raise TokenizerError(f"{origin}: the chat template is damaged: {reason}") from error


def _create_environment() -> ImmutableSandboxedEnvironment:
    """Create a Jinja sandbox with the settings of transformers. jinja2 must be installed."""
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class GenerationTag(Extension):
        """The tag {% generation %}, which marks the answers and does not change the output."""

        tags = {"generation"}  # noqa: RUF012 (as in jinja2)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def check_name(name: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"{name!r} is no name for an attribute")

    class SafeNamespace(Namespace):
        """A namespace that rejects names like __init__, which could help to escape the sandbox."""

        def __init__(*args: Any, **values: Any) -> None:  # a value may be named "self"
            Namespace.__init__(*args, **values)
            for name in dict(*args[1:], **values):
                check_name(name)

        def __setitem__(self, name: str, value: Any) -> None:
            check_name(name)
            super().__setitem__(name, value)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = _to_json
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    env.globals["namespace"] = SafeNamespace
    return env


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Convert a value to JSON, without the HTML escapes of jinja2's own filter `tojson`."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
