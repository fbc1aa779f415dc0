"""Pre-tokenization: split text into pieces; merges never cross from one piece to the next.

GPT-2's pattern is equivalent to the one in OpenAI's gpt-2/src/encoder.py. It matches:

    'll                   the end of an English contraction
    word   42   ?!        a run of letters, digits or other visible characters, with an optional
                          space in front
    white space           a run of white space; before a visible character, without the run's last
                          character

The pattern needs the `regex` package: the standard `re` lacks \\p{L}, and its \\s is not Unicode's
white space. For ASCII text, an equivalent pattern for `re` is used, because `re` is twice as fast.

Encoding takes a shortcut. In GPT-2's pattern and its successors, a space before a visible character
always begins a piece. So `str.split` can split a text into words at these spaces, ten times as fast
as the pattern. A word may include punctuation ("dog,"). The token ids of a word don't depend on the
words around it. Words repeat, so encoding mostly becomes one dictionary look-up per word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import pairwise

from gpt2np.errors import short_repr

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WHITESPACE = r" \t\n\r\x0b\x0c"
_ASCII_GPT2_PATTERN = (  # equivalent for ASCII text
    rf"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^{_WHITESPACE}A-Za-z0-9]+"
    rf"|[{_WHITESPACE}]+(?![^{_WHITESPACE}])|[{_WHITESPACE}]+"
)
HF_GPT2_PATTERN = (  # equivalent to GPT2_PATTERN; the form in Hugging Face's files
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

WHITESPACE_SPLITTING_PATTERNS = frozenset({GPT2_PATTERN})
"""Patterns in which white space after a visible character, even a line end, begins a piece."""

WORD_SPLITTING_PATTERNS = frozenset(PATTERN_NAMES.values())
"""Patterns in which every space before a visible character begins a piece."""

ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Visible ASCII characters except letters and digits; GPT-2's pattern keeps runs of them whole."""

PreTokenizer = Callable[[str], list[str]]
"""Function that splits a text into pieces; the joined pieces equal the text."""

# Characters assigned in Unicode 17 and 18. Each version of `regex` follows the latest Unicode, but
# tiktoken 0.14 and tokenizers 0.23 follow Unicode 16. Token ids must not depend on versions.
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
_FIRST_ASTRAL = "\U000107bb"
_UNASSIGNED = "\U00050000"

_SEGMENT_SIZE = 1 << 14  # characters; the words of a segment should fit the processor's cache

# Markers in the key of a word. _INNER_SPACE stands for a space within the word; _NO_SPACE marks a
# word without a space in front. Text that contains one of these characters is split by the pattern.
_INNER_SPACE = "\x01"
_NO_SPACE = "\x02"
_RARE_ASCII = (_INNER_SPACE, _NO_SPACE, "\x0b", "\x0c")
_RARE = (
    *_RARE_ASCII,
    *"\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000",
    *map(chr, range(0x2000, 0x200B)),
)


@lru_cache(maxsize=32)
def make_pre_tokenizer(patterns: tuple[str, ...]) -> PreTokenizer:
    """Return a function that splits a text by each of `patterns` in turn.

    Matches are pieces, and so is the text between two matches ("Isolated" in `tokenizers`). Without
    a pattern, the whole text is one piece.

        make_pre_tokenizer((GPT2_PATTERN,))("It's  so") → ["It", "'s", " ", " so"]

    Raises InvalidArgumentError if a pattern is not a regular expression, or too large. A split that
    takes too long raises InvalidArgumentError, too.
    """
    splits = [_split_by(pattern) for pattern in patterns]
    if len(splits) == 1:
        return splits[0]

    def split_by_all(text: str) -> list[str]:
        pieces = [text] if text else []
        for split in splits:
            pieces = [smaller for piece in pieces for smaller in split(piece)]
        return pieces

    return split_by_all


def _split_by(pattern: str) -> PreTokenizer:
    if pattern not in (GPT2_PATTERN, HF_GPT2_PATTERN):
        return _split_by_regex(pattern)
    split_ascii: PreTokenizer = re.compile(_ASCII_GPT2_PATTERN).findall

    def split(text: str) -> list[str]:
        return split_ascii(text) if text.isascii() else _split_by_regex(GPT2_PATTERN)(text)

    return split


@lru_cache(maxsize=32)
def _split_by_regex(pattern: str) -> PreTokenizer:
    from gpt2np.data.untrusted_regex import compile_pattern, search_seconds, too_slow

    compiled = compile_pattern(pattern, "the pattern")

    def split(text: str) -> list[str]:
        masked = mask_newer_characters(text)
        timeout = None if pattern in KNOWN_PATTERNS else search_seconds(len(text))
        try:
            if masked is text and not compiled.groups:
                pieces: list[str] = compiled.findall(text, timeout=timeout)
                if sum(map(len, pieces)) == len(text) and "" not in pieces:
                    return pieces
            spans = [match.span() for match in compiled.finditer(masked, timeout=timeout)]
        except (TimeoutError, MemoryError) as error:
            raise too_slow("the vocabulary's pattern", short_repr(pattern), len(text)) from error
        borders = sorted({0, len(text), *(border for span in spans for border in span)})
        return [text[start:end] for start, end in pairwise(borders)]

    return split


def mask_newer_characters(text: str) -> str:
    """Make characters newer than Unicode 16 unassigned: all versions of `regex` then agree."""
    if text.isascii():
        return text
    may_be_newer, is_newer = _newer_patterns()
    found = may_be_newer.search(text) and is_newer.search(text)
    return is_newer.sub(_UNASSIGNED, text) if found else text


@cache
def _newer_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a fast pattern that also matches older characters, and the exact pattern."""
    basic = _NEWER_THAN_UNICODE_16.partition(_FIRST_ASTRAL)[0]
    astral = "\U00010000-\U0010ffff"
    return re.compile(f"[{basic}{astral}]"), re.compile(f"[{_NEWER_THAN_UNICODE_16}]")


def split_text(text: str, pattern: str | None) -> Iterator[tuple[str, list[str] | None]]:
    """Cut a text into segments; yield each with the cache keys of its words (`split_words`).

    The keys are None if the segment must be split by the pattern.
    """
    if pattern not in WORD_SPLITTING_PATTERNS:
        yield text, None
        return
    at_newlines = pattern in WHITESPACE_SPLITTING_PATTERNS
    for segment in iter_segments(text):
        yield segment, split_words(segment, at_newlines=at_newlines)


def iter_segments(text: str) -> Iterator[str]:
    """Cut `text` before spaces that begin a word; yield segments of about 16,384 characters."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + _SEGMENT_SIZE)
        while end >= 0 and (text[end + 1 : end + 2] or " ").isspace():
            end = text.find(" ", end + 1)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def split_words(segment: str, *, at_newlines: bool) -> list[str] | None:
    """Split a segment of a text into words; return a cache key for each word.

    `word_text` converts a key back to the word. Words begin at spaces and, with `at_newlines`, at
    newlines. No piece of the pre-tokenizer may cross an end of the segment. Returns None if a
    character in the segment rules out splitting at spaces.
    """
    if any(rare in segment for rare in (_RARE_ASCII if segment.isascii() else _RARE)):
        return None
    body = segment.rstrip(" ")
    segment = body.replace("  ", _INNER_SPACE * 2) + _INNER_SPACE * (len(segment) - len(body))
    for white in "\n\t\r":
        if white in segment:
            segment = segment.replace(" " + white, _INNER_SPACE + white)
    if at_newlines and "\n" in segment:
        segment = segment.replace("\n", f" {_NO_SPACE}\n")
        for white in (_INNER_SPACE, "\n", "\t", "\r"):
            if white in segment:
                segment = segment.replace(f"{white} {_NO_SPACE}", white)
    return (_NO_SPACE + segment).split(" ")


def word_text(key: str) -> str:
    """Convert a key from `split_words` to the text of the word: "word" → " word"."""
    text = key[1:] if key.startswith(_NO_SPACE) else " " + key
    return text.replace(_INNER_SPACE, " ")
