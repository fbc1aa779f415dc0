"""The split pattern: text is cut into pieces, and merges never cross from one piece to the next.

The pattern is that of OpenAI's gpt-2/src/encoder.py, written more shortly: an English contraction's
tail; letters, digits or other signs, each with at most one space in front; white space, which
leaves its last character to the word that follows. It needs the `regex` package: the standard `re`
knows neither \\p{L} nor the Unicode definition of white space.
"""

import regex

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_find_pieces = regex.compile(GPT2_PATTERN).findall


def split(text: str) -> list[str]:
    """The pieces of `text`, which join to it: "It's  so" → ["It", "'s", " ", " so"]."""
    pieces: list[str] = _find_pieces(text)
    return pieces
