"""The split pattern: text is cut into pieces, and merges never cross from one piece to the next.

GPT-2's pattern is that of OpenAI's gpt-2/src/encoder.py, written more shortly: an English
contraction's tail; letters, digits or other signs, each with at most one space in front; white
space, which leaves its last character to the word that follows. It needs the `regex` package: the
standard `re` knows neither \\p{L} nor the Unicode definition of white space. For a text that is all
ASCII, though, `re` can say the same, and is twice as fast and sooner imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import pairwise

from gpt2np.errors import InvalidArgumentError

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WHITE = r" \t\n\r\x0b\x0c"
_ASCII_PATTERNS = {  # what a pattern means where every character is ASCII
    GPT2_PATTERN: rf"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^{_WHITE}A-Za-z0-9]+"
    rf"|[{_WHITE}]+(?![^{_WHITE}])|[{_WHITE}]+"
}
HF_GPT2_PATTERN = (  # the same, as Hugging Face's files spell it
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PATTERN_NAMES = {
    "gpt2": GPT2_PATTERN,
    "cl100k": CL100K_PATTERN,
    "qwen2": QWEN2_PATTERN,
    "o200k": O200K_PATTERN,
}
KNOWN_PATTERNS = frozenset({*PATTERN_NAMES.values(), HF_GPT2_PATTERN})

Split = Callable[[str], list[str]]
"""Text → its pieces, which join to it."""

# What Unicode 17 and 18 assigned. `regex` follows Unicode year by year; tiktoken 0.14 and
# tokenizers 0.23 classify by Unicode 16, and vocabularies should not change with a package.
_NEWER_THAN_UNICODE_16 = (
    "\u0558\u058b-\u058c\u05c8-\u05c9\u088f\u0b53-\u0b54\u0c5c\u0cdc\u1acf-\u1af0\u208f"
    "\u209d-\u209f\u20c1-\u20c4\u2b96\u2e60-\u2e63\ua7ce-\ua7cf\ua7d2\ua7d4\ua7dd\ua7e2\ua7f1"
    "\uab6c-\uab6d\ufbc3-\ufbd2\ufd90-\ufd91\ufdc8-\ufdce\U000107bb-\U000107bf"
    "\U00010940-\U00010959\U00010ec5-\U00010ec7\U00010ec9-\U00010eee\U00010ef0-\U00010efb"
    "\U00011b0a\U00011b60-\U00011b67\U00011db0-\U00011ddb\U00011de0-\U00011de9"
    "\U00011df0-\U00011df1\U0001246f\U00012475-\U0001247f\U00012550-\U00012686"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff"
    "\U00018cd6-\U00018cda\U00018d09-\U00018d20\U00018d80-\U00018df2\U00018e00-\U00019191"
    "\U000191a0-\U000191d2\U0001b123-\U0001b128\U0001b168\U0001ccfa-\U0001ccfc"
    "\U0001ceba-\U0001ced0\U0001ced2-\U0001ced4\U0001cedd-\U0001cefd\U0001d127-\U0001d128"
    "\U0001d1eb-\U0001d1ff\U0001d250-\U0001d281\U0001d6a6\U0001db00-\U0001db1c"
    "\U0001df1f-\U0001df24\U0001df2b-\U0001df81\U0001df90-\U0001df96\U0001dfcd-\U0001dfff"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe-\U0001e6ff\U0001f1ae"
    "\U0001f6d8-\U0001f6d9\U0001f777-\U0001f77a\U0001f7da-\U0001f7db\U0001f7f1-\U0001f7ff"
    "\U0001f8d0-\U0001f8d8\U0001fa54-\U0001fa57\U0001fa8a-\U0001fa8e\U0001fac8"
    "\U0001facc-\U0001facd\U0001fadd\U0001faea-\U0001faeb\U0001faef\U0001faf9-\U0001fafa"
    "\U0001fbfa\U0002b73a-\U0002b73f\U0002b81e\U0002cea2-\U0002cead\U000323b0-\U00033479"
    "\U0003d000-\U0003fc3f"
)
_FIRST_BEYOND = "\U000107bb"
_UNASSIGNED = "\U00050000"


@lru_cache(maxsize=32)
def splitter(patterns: tuple[str, ...]) -> Split:
    """The function that cuts a text by `patterns`, each cutting what the one before it left.

    What a pattern doesn't match is a piece as well (`tokenizers` calls this "isolated"). Without a
    pattern the whole text is one piece.

        splitter((GPT2_PATTERN,))("It's  so") → ["It", "'s", " ", " so"]

    Raises:
        InvalidArgumentError: a pattern is no regular expression.
    """
    if HF_GPT2_PATTERN in patterns:
        return splitter(tuple(GPT2_PATTERN if p == HF_GPT2_PATTERN else p for p in patterns))
    cuts = [_cut_by(pattern) for pattern in patterns]
    if len(cuts) == 1:
        return cuts[0]

    def cut_by_all(text: str) -> list[str]:
        pieces = [text] if text else []
        for cut in cuts:
            pieces = [smaller for piece in pieces for smaller in cut(piece)]
        return pieces

    return cut_by_all


def _cut_by(pattern: str) -> Split:
    if pattern not in _ASCII_PATTERNS:
        return _cut_by_regex(pattern)
    find_in_ascii: Split = re.compile(_ASCII_PATTERNS[pattern]).findall

    def cut(text: str) -> list[str]:
        return find_in_ascii(text) if text.isascii() else _cut_by_regex(pattern)(text)

    return cut


@lru_cache(maxsize=32)
def _cut_by_regex(pattern: str) -> Split:
    import regex

    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InvalidArgumentError(
            f"the pattern {pattern!r} is no regular expression: {error}"
        ) from error

    def cut(text: str) -> list[str]:
        known = _as_of_unicode_16(text)
        if known is text and not compiled.groups:
            pieces: list[str] = compiled.findall(text)
            if sum(map(len, pieces)) == len(text) and "" not in pieces:
                return pieces
        return _cut_at(text, [match.span() for match in compiled.finditer(known)])

    return cut


def _cut_at(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    borders = sorted({0, len(text), *(border for span in spans for border in span)})
    return [text[start:end] for start, end in pairwise(borders)]


def _as_of_unicode_16(text: str) -> str:
    """`text` itself, or a copy in which what is newer than Unicode 16 is unassigned."""
    if text.isascii() or not _perhaps_newer()(text):
        return text
    newer = _newer()
    return newer.sub(_UNASSIGNED, text) if newer.search(text) else text


@cache
def _newer() -> re.Pattern[str]:
    return re.compile(f"[{_NEWER_THAN_UNICODE_16}]")


@cache
def _perhaps_newer() -> Callable[[str], object]:
    """Ten times as fast, and right to say no: everything beyond the first 65,536 may be newer."""
    basic = _NEWER_THAN_UNICODE_16.partition(_FIRST_BEYOND)[0]
    return re.compile(f"[{basic}\U00010000-\U0010ffff]").search
