"""Checks and patterns for Unicode text."""

import codecs
import re
from functools import lru_cache


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


def describe_decode_error(source: object, error: UnicodeDecodeError, offset: int = 0) -> str:
    """Describe invalid UTF-8 in `source`; `error.object` begins at byte `offset` of `source`."""
    if offset == 0 and is_utf16(error.object):
        return f"{source} is UTF-16 text, not UTF-8"
    byte = error.object[error.start]
    return f"{source} is not UTF-8 text: byte 0x{byte:02x} at offset {offset + error.start}"


@lru_cache(maxsize=64)
def any_literal(literals: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of `literals` at a position.

    Without literals, the pattern matches nothing.
    """
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
