"""Chat templates: turn messages into the text that a model was trained to continue.

A template is a Jinja program from the model's files. It runs in jinja2's sandbox, in a separate
process (`template_worker`) with limits on time, memory and output. As in transformers 5, a template
can use the filter `tojson`, the functions `raise_exception` and `strftime_now`, and the tags
`{% break %}` and `{% generation %}`. Special tokens are variables such as `bos_token`; the
variables `tools` and `documents` are always None.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Lock, Timer
from typing import Any
from weakref import finalize

from gpt2np.data.files import read_bytes
from gpt2np.errors import (
    GPT2NPError,
    InvalidArgumentError,
    TokenizerError,
    install_hint,
    short_repr,
)
from gpt2np.hub.model_files import CHAT_TEMPLATE_FILE
from gpt2np.limits import limits
from gpt2np.tokenizer.normalizer import find_first
from gpt2np.tokenizer.special_tokens import CONFIG_FILE, read_if_exists

_MIN_JINJA2 = (3, 1, 6)  # in older versions, templates can escape from the sandbox

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatTemplate:
    """A model's chat template.

    Attributes:
        source: the Jinja program.
        origin: the path of the template's file, for error messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Compile a template; `special_tokens` maps names such as "eos_token" to tokens.

        Raises:
            GPT2NPError: jinja2 is missing or too old.
            TokenizerError: `source` is not a valid template, or exceeds a limit.
        """
        self.origin = origin
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._lock = Lock()
        self._process: Popen[bytes] | None = None
        _check_jinja2()
        with self._lock:
            self._start()

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Render messages to a text. Each message has a `role` from ROLES and a `content`.

        `add_generation_prompt` appends the text that starts the model's answer.

        Raises:
            InvalidArgumentError: a message is invalid, or the template refuses the conversation or
                gives no text.
            TokenizerError: the template raises another error, or exceeds a limit.
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
        with self._lock:
            if self._process is None:  # the last rendering has exceeded a limit
                self._start()
            answer = self._ask(content)
        if "text" in answer:
            if not answer["text"]:
                raise InvalidArgumentError(f"{self.origin}: the chat template gives no text")
            return answer["text"]
        if answer["error"] == "TemplateRefusalError":
            raise InvalidArgumentError(
                f"the chat template refuses this conversation: {answer['message']}"
            )
        raise TokenizerError(f"{self.origin}: the chat template fails: {answer['message']}")

    def _start(self) -> None:
        """Start the worker process, and compile the template there."""
        script = Path(__file__).with_name("template_worker.py")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = Popen([sys.executable, script], stdin=PIPE, stdout=PIPE, env=env)
        finalize(self, _stop, self._process)
        request = {
            "source": self.source,
            "max_memory_bytes": limits().max_template_memory_bytes,
            "max_characters": limits().max_template_characters,
        }
        answer = self._ask(request)
        if "error" in answer:
            raise TokenizerError(
                f"{self.origin}: the chat template is damaged: {answer['message']}"
            )

    def _ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Return the worker process's answer to a request; kill the process on a timeout."""
        process, seconds = self._process, limits().max_template_seconds
        assert process and process.stdin and process.stdout
        deadline = time.monotonic() + seconds
        timer = Timer(seconds, process.kill)
        timer.start()
        line = b""
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # the process has ended: EPIPE, on Windows EINVAL
            pass
        finally:
            timer.cancel()
            if not line.endswith(b"\n"):  # also after Ctrl-C: the answer may still come
                self._process = None
                _stop(process)
        if line.endswith(b"\n"):
            answer: dict[str, str] = json.loads(line)
            return answer
        late = time.monotonic() >= deadline
        reason = f"it takes more than {seconds} seconds" if late else "its process crashed"
        return {"error": "Limit", "message": reason}


def _stop(process: Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def check_message(message: Any, name: str) -> dict[str, str]:
    """Return a copy of a message with a role from ROLES and a text; otherwise raise an error.

    The error's text begins with `name`.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise InvalidArgumentError(f"{name} must have a role and a content, both strings")
    if message.get("role") not in ROLES:
        raise InvalidArgumentError(
            f"{name} has the role {short_repr(message.get('role'))}; expected one of "
            f"{', '.join(ROLES)}"
        )
    return dict(message)


def check_special_tokens(
    messages: Iterable[Mapping[str, str]], special_tokens: Collection[str]
) -> None:
    """Raise InvalidArgumentError for a special token in a message: it could forge a turn's end."""
    for message in messages:
        if token := find_first(message["content"], special_tokens):
            raise InvalidArgumentError(
                f"the {message['role']} message {short_repr(message['content'])} contains {token}, "
                "which only the chat template may add; remove it or spell it differently"
            )


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


def _check_jinja2() -> None:
    try:
        import jinja2
    except ImportError as error:
        hint = install_hint("chat")
        raise GPT2NPError(f"chat templates need the package jinja2; {hint}") from error
    if tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3])) < _MIN_JINJA2:
        raise GPT2NPError(
            f"jinja2 {jinja2.__version__} is not safe for chat templates; install 3.1.6 or newer"
        )
