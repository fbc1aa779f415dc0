"""Possible matches by the `regex` package, also for bytes that end inside of a character."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import regex

ALPHABET = "ab1 é漢😀\n_-Z٣"
"""Characters of random texts and patterns."""


def can_lead_to_match(pattern: str, data: bytes) -> bool:
    """Whether a matching text starts with these bytes."""
    is_partial = compiled(pattern).fullmatch
    try:
        return is_partial(data.decode(), partial=True) is not None
    except UnicodeDecodeError as error:
        if error.end != len(data) or "unexpected end" not in error.reason:
            return False
        head, tail = data[: error.start].decode(), data[error.start :]
        texts = (head + character for character in beginning_with(tail))
        return any(is_partial(text, partial=True) for text in texts)


def read(automaton, state: int, data: bytes) -> int:
    """Return the state of a ByteAutomaton after it reads `data` from a state."""
    for byte in data:
        state = int(automaton.step(np.array([state]), np.array([byte]))[0])
    return state


@lru_cache(maxsize=1000)
def compiled(pattern: str) -> regex.Pattern:
    return regex.compile(pattern)


@lru_cache(maxsize=1000)
def beginning_with(tail: bytes) -> str:
    """Return the characters whose UTF-8 starts with `tail`; every sixteenth of very many.

    Runs of four-byte characters in the tests' sets are longer than that, except in ALPHABET.
    """
    length = 2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4
    missing = length - len(tail)
    low, high = (
        int(
            "".join(
                f"{byte & 0x3F:06b}" for byte in [tail[0] & (0x7F >> length), *tail[1:], *rest]
            ),
            2,
        )
        for rest in ([0x80] * missing, [0xBF] * missing)
    )
    low = max(low, (0, 0x80, 0x800, 0x10000)[length - 1])
    codes = range(low, min(high, 0x10FFFF) + 1, 16 if missing == 3 else 1)
    known = [character for character in ALPHABET if character.encode().startswith(tail)]
    return "".join([*known, *(chr(code) for code in codes if not 0xD800 <= code < 0xE000)])


@dataclass(eq=False)
class TokenTable:
    """What constraints need of a tokenizer: id → bytes, and special tokens."""

    token_bytes: dict[int, bytes]
    special_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def vocabulary(self):
        return self
