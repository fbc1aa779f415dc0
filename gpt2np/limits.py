"""Limits on files, texts and requests from strangers.

Ordinary use stays far below each limit. The environment variable GPT2NP_ + NAME sets a limit, as in
GPT2NP_MAX_LINE_BYTES=1000000000.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache

from gpt2np.errors import InvalidArgumentError, short_repr

MIB, GIB = 1 << 20, 1 << 30
MAX_VOCABULARY_BYTES = 32 * MIB  # several times the largest byte-pair vocabulary in use


@dataclass(frozen=True)
class Limits:
    """Limits on untrusted input."""

    # Of a config, header or chat template. Parsing JSON can take fifty times its size in memory;
    # GPT-2 XL's header has 60,000 bytes, the largest common tokenizer_config.json 1.2 million.
    max_config_bytes: int = 2 * MIB
    max_line_bytes: int = 64 * MIB  # of a .jsonl file or prompt file
    max_document_bytes: int = GIB  # a text from standard input, a file or a corpus
    max_cache_bytes: int = GIB  # KV caches of all running sequences together
    max_body_bytes: int = 4 * MIB  # of a request; parsing 4 MiB keeps the interpreter for 0.1 s


@cache
def limits() -> Limits:
    """Return the limits on untrusted input; environment variables replace the defaults.

    Raises InvalidArgumentError if a variable is not a positive integer.
    """
    values = {}
    for limit in fields(Limits):
        name = variable(limit.name)
        if (text := os.environ.get(name)) is not None:
            if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text)):
                message = f"{name} is {short_repr(text)}; expected a positive integer"
                raise InvalidArgumentError(message)
            values[limit.name] = int(text)
    return Limits(**values)


def how_to_raise(name: str) -> str:
    """Return advice for an error message on how to raise a limit."""
    return f"to raise this limit, set {variable(name)}"


def variable(name: str) -> str:
    """Return the environment variable that sets a limit: max_line_bytes → GPT2NP_MAX_LINE_BYTES."""
    return f"GPT2NP_{name.upper()}"
