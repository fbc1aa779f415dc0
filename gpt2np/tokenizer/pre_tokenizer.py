"""Pre-tokenization: split text into pieces; merges never cross from one piece to the next.

GPT-2's pattern is equivalent to the one in OpenAI's gpt-2/src/encoder.py. It matches:

    'll                   the end of an English contraction
    word   42   ?!        a run of letters, digits or other visible characters, with an optional
                          space in front
    white space           a run of white space; before a visible character, without the run's last
                          character

The pattern needs the `regex` package: the standard `re` lacks \\p{L}, and its \\s is not Unicode's
white space. For ASCII text, an equivalent pattern for `re` is used, because `re` is twice as fast.

Encoding takes a shortcut. In GPT-2's pattern and in Qwen's, a space before a visible character
always begins a piece. So `str.split` can split a text into words at these spaces, ten times as fast
as the pattern. A word may include punctuation ("dog,"). The token ids of a word don't depend on the
words around it. Words repeat, so encoding mostly becomes one dictionary look-up per word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.unicode16 import mask_newer_characters

TYPE_CHECKING = False
if TYPE_CHECKING:
    import regex

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WHITESPACE = r" \t\n\r\x0b\x0c"
_ASCII_GPT2_PATTERN = (  # equivalent for ASCII text
    rf"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^{_WHITESPACE}A-Za-z0-9]+"
    rf"|[{_WHITESPACE}]+(?![^{_WHITESPACE}])|[{_WHITESPACE}]+"
)
HF_GPT2_PATTERN = (  # equivalent to GPT2_PATTERN; the form in Hugging Face's files
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PATTERNS = {"gpt2": GPT2_PATTERN, "qwen2": QWEN2_PATTERN}

ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Visible ASCII characters except letters and digits; GPT-2's pattern keeps runs of them whole."""

PreTokenizer = Callable[[str], list[str]]
"""Function that splits a text into pieces; the joined pieces equal the text."""

_CHUNK_SIZE = 1 << 14  # characters; the words of a chunk should fit the processor's cache

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


@cache
def make_pre_tokenizer(pattern: str | None) -> PreTokenizer:
    """Return a function that splits a text into pieces, the matches of one of PATTERNS.

    Without a pattern, the whole text is one piece.

        make_pre_tokenizer(GPT2_PATTERN)("It's  so") → ["It", "'s", " ", " so"]
    """
    if pattern is None:
        return lambda text: [text] if text else []
    if pattern not in PATTERNS.values():
        raise TokenizerError("the pre-tokenizer's pattern is neither GPT-2's nor Qwen's")
    split_ascii = re.compile(_ASCII_GPT2_PATTERN).findall if pattern == GPT2_PATTERN else None

    def split(text: str) -> list[str]:
        if split_ascii and text.isascii():
            return split_ascii(text)
        compiled, masked = _compile(pattern), mask_newer_characters(text)
        if masked is text:
            return list(compiled.findall(text))
        return [text[slice(*match.span())] for match in compiled.finditer(masked)]

    return split


@cache
def _compile(pattern: str) -> regex.Pattern[str]:
    import regex  # only here: ASCII text does not need it

    return regex.compile(pattern)


def split_text(text: str, pattern: str | None) -> Iterator[tuple[str, list[str] | None]]:
    """Cut a text into chunks; yield each with the cache keys of its words (`split_words`).

    The keys are None if the chunk must be split by the pattern, or there is no pattern.
    """
    if pattern is None:
        yield text, None
        return
    at_newlines = pattern == GPT2_PATTERN  # in which every white space begins a piece
    for chunk in iter_chunks(text):
        yield chunk, split_words(chunk, at_newlines=at_newlines)


def iter_chunks(text: str) -> Iterator[str]:
    """Cut `text` before spaces that begin a word; yield chunks of about 16,384 characters."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + _CHUNK_SIZE)
        while end >= 0 and (text[end + 1 : end + 2] or " ").isspace():
            end = text.find(" ", end + 1)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def split_words(chunk: str, *, at_newlines: bool) -> list[str] | None:
    """Split a chunk of a text into words; return a cache key for each word.

    `word_text` converts a key back to the word. Words begin at spaces and, with `at_newlines`, at
    newlines. No piece of the pre-tokenizer may cross an end of the chunk. Returns None if a
    character in the chunk rules out splitting at spaces.
    """
    if any(rare in chunk for rare in (_RARE_ASCII if chunk.isascii() else _RARE)):
        return None
    body = chunk.rstrip(" ")
    chunk = body.replace("  ", _INNER_SPACE * 2) + _INNER_SPACE * (len(chunk) - len(body))
    for white in "\n\t\r":
        if white in chunk:
            chunk = chunk.replace(" " + white, _INNER_SPACE + white)
    if at_newlines and "\n" in chunk:
        chunk = chunk.replace("\n", f" {_NO_SPACE}\n")
        for white in (_INNER_SPACE, "\n", "\t", "\r"):
            if white in chunk:
                chunk = chunk.replace(f"{white} {_NO_SPACE}", white)
    return (_NO_SPACE + chunk).split(" ")


def word_text(key: str) -> str:
    """Convert a key from `split_words` to the text of the word: "word" → " word"."""
    text = key[1:] if key.startswith(_NO_SPACE) else " " + key
    return text.replace(_INNER_SPACE, " ")
