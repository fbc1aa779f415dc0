"""Sets of characters: sorted ranges of code points, first and last, that neither touch nor overlap.

Surrogates, U+D800 to U+DFFF, are in none of them, because UTF-8 can't express them.
"""

from collections.abc import Iterable
from functools import lru_cache

import regex

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def character_set(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of any `ranges`, without surrogates."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    below, above = _SURROGATES[0] - 1, _SURROGATES[1] + 1
    parts = [part for a, b in joined for part in ((a, min(b, below)), (max(a, above), b))]
    return tuple((a, b) for a, b in parts if a <= b)


def complement(characters: Ranges) -> Ranges:
    """All characters but these."""
    starts = [0, *(last + 1 for _, last in characters)]
    ends = [*(first - 1 for first, _ in characters), _LAST]
    return character_set((a, b) for a, b in zip(starts, ends, strict=True) if a <= b)


@lru_cache(maxsize=64)
def characters_of(escape: str) -> Ranges:
    r"""What an escape such as \w or \p{Greek} stands for: the `regex` package is asked.

    Raises:
        regex.error: there is no such property.
    """
    found = regex.compile(f"{escape}+").finditer(_all_characters())
    return character_set((match.start(), match.end() - 1) for match in found)


@lru_cache(maxsize=1)
def _all_characters() -> str:
    return "".join(map(chr, range(_LAST + 1)))
