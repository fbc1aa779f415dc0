"""Chunks: a text is cut where a cut changes nothing, so that one look-up serves a whole word.

In GPT-2's pattern, and in those of its successors, a space before a character that is not white
space always begins a piece. A text may be cut there, encoded chunk by chunk, and the same chunk has
the same ids anywhere. `str.split` cuts ten times as fast as the pattern, and words come again: most
of the work is one look-up for each chunk ("dog," as a whole), done in C.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt2np.tokenizer.split import CL100K_PATTERN, GPT2_PATTERN, O200K_PATTERN, QWEN2_PATTERN

BEFORE_LINES = frozenset({GPT2_PATTERN})
"""Patterns that also begin a piece wherever white space begins, as at the end of a line."""

BEFORE_WORDS = BEFORE_LINES | {CL100K_PATTERN, QWEN2_PATTERN, O200K_PATTERN}
"""Patterns for which a text may be cut before every space that begins a word."""

SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What GPT-2's pattern keeps together beside a word, of ASCII: neither letter, digit nor white."""

_BLOCK = 1 << 14  # characters; the chunks of a block should stay in the processor's cache

# Two control characters that no text should hold: a space within a chunk, and the start of a chunk
# that has no space in front. Where a text does hold them, the pattern is asked for all of it.
_INNER_SPACE = "\x01"
_NO_SPACE = "\x02"
_RARE_ASCII = (_INNER_SPACE, _NO_SPACE, "\x0b", "\x0c")
_RARE = (
    *_RARE_ASCII,
    *"\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000",
    *map(chr, range(0x2000, 0x200B)),
)


def blocks(text: str) -> Iterator[str]:
    """`text` in parts of about 16 K characters, cut before spaces that begin a word."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + _BLOCK)
        while end >= 0 and (text[end + 1 : end + 2] or " ").isspace():
            end = text.find(" ", end + 1)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def chunks(block: str, *, before_lines: bool) -> list[str] | None:
    """The keys of the chunks of `block`: see `text_of`. None if they can't be found by spaces.

    Args:
        block: part of a text, from a safe border to a safe border.
        before_lines: also cut before the end of a line.
    """
    if any(rare in block for rare in (_RARE_ASCII if block.isascii() else _RARE)):
        return None
    body = block.rstrip(" ")
    block = body.replace("  ", _INNER_SPACE * 2) + _INNER_SPACE * (len(block) - len(body))
    for white in "\n\t\r":
        if white in block:
            block = block.replace(" " + white, _INNER_SPACE + white)
    if before_lines and "\n" in block:
        block = block.replace("\n", f" {_NO_SPACE}\n")
        for white in (_INNER_SPACE, "\n", "\t", "\r"):
            if white in block:
                block = block.replace(f"{white} {_NO_SPACE}", white)
    return (_NO_SPACE + block).split(" ")


def text_of(key: str) -> str:
    """The text of a chunk: the key "word" stands for " word", a marked key for itself."""
    text = key[1:] if key.startswith(_NO_SPACE) else " " + key
    return text.replace(_INNER_SPACE, " ")
