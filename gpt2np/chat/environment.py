"""The environment in which chat templates run: jinja2's sandbox, and what `transformers` adds."""

import json
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class RefusedError(Exception):
    """What `raise_exception` raises in a template."""


def environment() -> ImmutableSandboxedEnvironment:
    """A new environment, with transformers' settings."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.globals["namespace"] = _PlainNamespace
    return made


class _Generation(Extension):
    """{% generation %} marks what the model wrote, which nobody asks for here."""

    tags = {"generation"}  # noqa: RUF012 (so jinja2 wants it)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace without names of Python's insides, through which code could get out."""

    def __init__(*args: Any, **names: Any) -> None:  # a name may be "self"
        Namespace.__init__(*args, **names)
        for name in dict(*args[1:], **names):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"{name!r} is no name for an attribute")


def _refuse(message: object) -> None:
    raise RefusedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes that jinja2's own filter makes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
