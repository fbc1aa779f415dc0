"""Chat templates: turn messages into the text that a model was trained to continue.

A template is a Jinja program from the model's files. It runs in jinja2's sandbox, as in
transformers and vLLM: the sandbox keeps a template from calling code, but not from taking time or
memory. A template can use the filter `tojson`, the functions `raise_exception` and `strftime_now`,
and the tags `{% break %}` and `{% generation %}`. Special tokens are variables such as `bos_token`;
the variables `tools` and `documents` are always None.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gpt2np.data.files import read_bytes
from gpt2np.errors import (
    GPT2NPError,
    InvalidArgumentError,
    TokenizerError,
    check_argument,
    install_hint,
    short_repr,
)
from gpt2np.hub.model_files import CHAT_TEMPLATE_FILE
from gpt2np.limits import limits
from gpt2np.tokenizer import Tokenizer
from gpt2np.tokenizer.normalizer import find_first
from gpt2np.tokenizer.special_tokens import CONFIG_FILE, read_if_exists


class ChatTemplate:
    """A model's chat template.

    Attributes:
        source: the Jinja program.
        origin: the path of the template's file, for error messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Compile a template; `special_tokens` maps names such as "eos_token" to tokens.

        Raises:
            GPT2NPError: jinja2 is missing.
            TokenizerError: `source` is not a valid template.
        """
        try:
            self._template = _environment().from_string(source)
        except ImportError as error:
            hint = install_hint("chat")
            raise GPT2NPError(f"chat templates need the package jinja2; {hint}") from error
        except Exception as error:  # jinja2's and Python's, for nested blocks
            line = f"line {error.lineno}: " if hasattr(error, "lineno") else ""
            reason = f"{line}{getattr(error, 'message', error)}"
            raise TokenizerError(f"{origin}: the chat template is damaged: {reason}") from error
        self.origin = origin
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        special_tokens: Collection[str] = (),
    ) -> str:
        """Render messages to a text. Each message has a `role` and a `content`.

        `add_generation_prompt` appends the text that starts the model's answer.

        Raises:
            InvalidArgumentError: a message is invalid or contains one of `special_tokens`, which
                could forge a turn, or the template refuses the conversation or gives no text.
            TokenizerError: the template raises another error.
        """
        for message in messages:
            is_valid = all(isinstance(message.get(name), str) for name in ("role", "content"))
            check_argument(is_valid, "message", message, "a dict with the texts role and content")
            if token := find_first(message["content"], special_tokens):
                raise InvalidArgumentError(
                    f"the {message['role']} message {short_repr(message['content'])} contains "
                    f"{token}, which only the chat template may add; remove it or spell it "
                    "differently"
                )
        try:
            text = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except InvalidArgumentError:  # of `raise_exception`
            raise
        except Exception as error:  # a template can raise any exception
            reason = str(error) or type(error).__name__
            raise TokenizerError(f"{self.origin}: the chat template fails: {reason}") from error
        if not text:
            raise InvalidArgumentError(f"{self.origin}: the chat template gives no text")
        return str(text)

    def encode(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Render messages and encode the text; see `render`. No message may have special tokens."""
        add, special = add_generation_prompt, tokenizer.special_tokens
        text = self.render(messages, add_generation_prompt=add, special_tokens=special)
        return tokenizer.encode(text, allowed_special="all")


def _environment() -> Any:
    """Create a Jinja sandbox with the settings of transformers."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """The tag {% generation %}, which marks the answers and does not change the output."""

        tags = {"generation"}  # noqa: RUF012 (as in jinja2)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # no HTML escapes
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return env


def _raise_exception(message: object) -> NoReturn:
    raise InvalidArgumentError(f"the chat template refuses this conversation: {message}")


def read_chat_template(
    folder: str | Path,
    special_tokens: Mapping[str, str] | None = None,
    *,
    file: str | Path | None = None,
) -> ChatTemplate | None:
    """Read the chat template of the model in `folder`; returns None if the model has no template.

    A Jinja `file` replaces the model's template. As in transformers 5, chat_template.jinja takes
    precedence over `chat_template` in tokenizer_config.json. If tokenizer_config.json has several
    templates, "default" is used.

    Raises:
        GPT2NPError, TokenizerError: the template can't be compiled (see `ChatTemplate`), or a file
            is damaged.
    """
    path = Path(file or Path(folder, CHAT_TEMPLATE_FILE))
    if file or path.exists():
        data = read_bytes(path, TokenizerError, max_bytes=limits().max_config_bytes)
        try:
            text = data.decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path} is damaged: not UTF-8 text") from error
        return ChatTemplate(text, special_tokens or {}, str(path))
    path = Path(folder, CONFIG_FILE)
    source = read_if_exists(path).get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        source = next((e.get("template") for e in entries if e.get("name") == "default"), None)
    if source is None:
        return None
    if not isinstance(source, str):
        raise TokenizerError(f"{path} is damaged: chat_template is {short_repr(source)}")
    return ChatTemplate(source, special_tokens or {}, str(path))
