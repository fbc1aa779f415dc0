"""Added tokens: texts that are one token each, found before a text is split and merged.

Special tokens such as `<|endoftext|>` are added tokens; others are words that somebody added to a
finished vocabulary. What counts as an occurrence follows `AddedToken` of Hugging Face's
`tokenizers` (added_vocabulary.rs).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

Part = tuple[int, int, int | None]
"""(start, end, id of the added token there, or None for text in between), in characters."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is found as it stands.

    Attributes:
        content: its text.
        id: its id.
        special: whether it is for control, so that a text only becomes it where that is allowed.
        single_word: it doesn't count within a word.
        lstrip: white space to its left belongs to it.
        rstrip: white space to its right belongs to it.
        normalized: it is looked for after the text was normalized, and not before.
    """

    content: str
    id: int
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def split_added(text: str, tokens: Collection[AddedToken]) -> Iterator[Part]:
    """The parts of `text`, in order: at each place the longest of `tokens`, and what is between."""
    done = 0
    if tokens:
        by_content = {token.content: token for token in tokens}
        for match in any_of(frozenset(by_content)).finditer(text):
            token, (start, end) = by_content[match[0]], match.span()
            if token.single_word and _within_word(text, start, end):
                continue
            if token.lstrip:
                while start > done and text[start - 1] in _WHITE:
                    start -= 1
                start = max(start, done)
            while token.rstrip and end < len(text) and text[end] in _WHITE:
                end += 1
            if done < start:
                yield done, start, None
            if start < end:
                yield start, end, token.id
                done = end
    if done < len(text):
        yield done, len(text), None


def find_first(text: str, contents: Collection[str]) -> str | None:
    """The first of `contents` that occurs in `text`, the longest if several begin there."""
    match = any_of(frozenset(contents)).search(text) if contents else None
    return match[0] if match else None


# White space as Unicode defines it; str.strip would take U+001C to U+001F for it, too.
_WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def _within_word(text: str, start: int, end: int) -> bool:
    import regex

    is_word = regex.compile(r"\w").match
    return bool((start and is_word(text[start - 1])) or (end < len(text) and is_word(text[end])))


@lru_cache(maxsize=64)
def any_of(contents: frozenset[str]) -> re.Pattern[str]:
    """Matches each of `contents`; where several begin at one place, the longest. None: nothing."""
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
