"""Added tokens: texts that are matched as a whole, before pre-tokenization and merging.

Special tokens such as `<|endoftext|>` are added tokens; others are words added to a finished
vocabulary. The rules of matching are those of Hugging Face's `tokenizers` (added_vocabulary.rs).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

AddedSpan = tuple[int, int, int | None]
"""(start, end, id of the added token, or None for the text in between), in characters."""

# White space of Unicode. str.strip would count U+001C to U+001F, too.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched as a whole.

    Attributes:
        content: text of the token.
        id: id of the token.
        special: whether it is a control token; text becomes one only where that is allowed.
        single_word: whether a match within a word is ignored.
        lstrip: whether a match includes the white space on its left.
        rstrip: whether a match includes the white space on its right.
        normalized: whether it is matched in normalized text instead of the original.
    """

    content: str
    id: int
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def split_added(text: str, tokens: Collection[AddedToken]) -> Iterator[AddedSpan]:
    """Split `text` at its added tokens; the longest token wins where several begin."""
    done = 0
    if tokens:
        by_content = {token.content: token for token in tokens}
        for match in any_literal(frozenset(by_content)).finditer(text):
            token, (start, end) = by_content[match[0]], match.span()
            if token.single_word and _is_within_word(text, start, end):
                continue
            if token.lstrip:
                while start > done and text[start - 1] in _WHITESPACE:
                    start -= 1
                start = max(start, done)
            while token.rstrip and end < len(text) and text[end] in _WHITESPACE:
                end += 1
            if done < start:
                yield done, start, None
            if start < end:
                yield start, end, token.id
                done = end
    if done < len(text):
        yield done, len(text), None


def find_first(text: str, contents: Collection[str]) -> str | None:
    """Return the first of `contents` that occurs in `text`, the longest if several begin there."""
    match = any_literal(frozenset(contents)).search(text) if contents else None
    return match[0] if match else None


def _is_within_word(text: str, start: int, end: int) -> bool:
    import regex

    is_word = regex.compile(r"\w").match
    return bool((start and is_word(text[start - 1])) or (end < len(text) and is_word(text[end])))


@lru_cache(maxsize=64)
def any_literal(literals: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of `literals`, the longest first; of none, nothing."""
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
