"""UTF-8 decoding, checks and patterns of Unicode text."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

from gpt2np.errors import InvalidArgumentError


def is_unicode_text(text: str) -> bool:
    """Return whether `text` is free of lone surrogates, which UTF-8 can't encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_utf16(data: bytes) -> bool:
    """Return whether `data` begins with the byte-order mark of UTF-16."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def decode_utf8(data: bytes, source: object) -> str:
    """Decode UTF-8, without a byte-order mark.

    Raises:
        InvalidArgumentError: the data is not UTF-8. The message names `source` and the first
            invalid byte.
    """
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        problem = describe_decode_error(source, error)
        raise InvalidArgumentError(f"{problem}; convert it to UTF-8 first") from error


def describe_decode_error(source: object, error: UnicodeDecodeError) -> str:
    """Describe invalid UTF-8 in `source`, from its first byte on."""
    if is_utf16(error.object):
        return f"{source} is UTF-16 text, not UTF-8"
    byte = error.object[error.start]
    return f"{source} is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}"


@lru_cache(maxsize=64)
def any_literal(literals: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest possible of `literals`; nothing if empty."""
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
