"""Compile and render one chat template in a process of its own; see `gpt2np.chat.template`.

The process bounds what a template can do: its memory is limited here, and the parent ends it when
the time is up. This file runs as a script, and imports only jinja2 and the standard library.

Each line of standard input and output is a JSON object. The first line has the template's source
and the limits; each further line has the variables of one rendering. An answer has a `text`, or the
kind of an `error` and its `message`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

_MAX_MESSAGE = 1000  # characters; a template can raise a message of any length


class TemplateRefusalError(Exception):
    """Raised when a template calls `raise_exception`."""


def main() -> None:
    """Answer the requests on standard input until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    request = json.loads(sys.stdin.readline())
    template: Any = None
    while request is not None:
        try:
            if template is None:
                _limit_memory(request["max_memory_bytes"])
                max_characters = request["max_characters"]
                template = _create_environment().from_string(request["source"])
                answer = {"text": ""}
            else:
                answer = {"text": _render(template, request, max_characters)}
        except Exception as error:  # a template can raise any exception
            answer = _describe(error)
        print(json.dumps(answer), flush=True)
        request = json.loads(sys.stdin.readline() or "null")


def _limit_memory(n_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    least = n_bytes if most == resource.RLIM_INFINITY else min(n_bytes, most)
    with suppress(ValueError):  # macOS refuses any limit below the gigabytes that it maps itself
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def _render(template: Any, variables: dict[str, Any], max_characters: int) -> str:
    parts, length = [], 0
    for part in template.generate(variables):
        length += len(part)
        if length > max_characters:
            raise ValueError(f"its text exceeds {max_characters:,} characters")
        parts.append(part)
    return "".join(parts)


def _describe(error: Exception) -> dict[str, str]:
    from jinja2 import TemplateSyntaxError

    message = str(error) or type(error).__name__
    if isinstance(error, TemplateSyntaxError):
        message = f"line {error.lineno}: {error.message}"
    return {"error": type(error).__name__, "message": message[:_MAX_MESSAGE]}


def _create_environment() -> Any:
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


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # noqa: PTH100, PTH120
        del sys.path[0]  # this folder is a part of a package, not a place to import from
    main()
