r"""Tables for a terminal: tokens with their ids, and steps of merges.

A token may be unprintable: half a character, a line end, or an escape sequence for a terminal. So
unprintable characters are escaped like in Python: "\n" for a line end, "\u200b" for an invisible
character, "\xf0" for a byte of an incomplete character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2np.tokenizer.trace import MergeStep, MergeTrace
from gpt2np.tokenizer.vocabulary import SPACE_PLACEHOLDER, Vocabulary, chars_to_bytes

SPACE_SYMBOL = "␣"
"""Visible symbol for a space."""

_NO_MERGE = "–"
_BACKGROUNDS = (189, 157, 223, 217, 159)  # distinct pale colors of the 256-color palette
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


@dataclass(frozen=True)
class Style:
    """Formatting of text for a terminal; without `color`, methods return text unchanged."""

    color: bool = False

    def token(self, text: str, index: int) -> str:
        """Color a token's background; tokens with successive `index` have different colors."""
        background = _BACKGROUNDS[index % len(_BACKGROUNDS)]
        return self._format(f"38;5;16;48;5;{background}", text)

    def dim(self, text: str) -> str:
        """Dim less important text."""
        return self._format("2", text)

    def bold(self, text: str) -> str:
        """Highlight text: bold and green."""
        return self._format("1;32", text)

    def _format(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text


def escape_token(data: bytes) -> str:
    r"""Escape the bytes of a token to printable text: b" caf\xc3" → " caf\\xc3"."""
    text = data.decode("utf-8", "backslashreplace")
    escaped = "".join(map(_escape_character, text))
    starts_with_mark = text[:1] and unicodedata.category(text[0])[0] == "M"
    return "◌" + escaped if starts_with_mark else escaped


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    escape = f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x80 else escape)


def escape_spelling(token: str, vocabulary: Vocabulary) -> str:
    """Convert a token as spelled in `vocabulary.ids` ("Ġthe") to printable text ("␣the")."""
    if vocabulary.byte_level:
        return _with_space_symbols(chars_to_bytes(token))
    return _with_space_symbols(token.replace(SPACE_PLACEHOLDER, " ").encode())


def _with_space_symbols(data: bytes) -> str:
    return escape_token(data).replace(" ", SPACE_SYMBOL)


def display_width(text: str) -> int:
    """Count the terminal columns of `text`: most characters have one, Chinese characters two."""
    return sum(
        2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
        if unicodedata.category(character) not in ("Mn", "Me")
    )


def token_rows(tokens: Sequence[bytes], ids: Sequence[int], width: int, style: Style) -> str:
    """Format tokens side by side with their ids below, in rows of at most `width` columns.

        G │PT   │2 │ was│ created
        38│11571│17│373 │2727

    A token that ends with a line end also ends its row.
    """
    bar = " " if style.color else "│"
    rows: list[tuple[list[str], list[str]]] = []
    used = width  # columns of the last row
    for index, (token, token_id) in enumerate(zip(tokens, ids, strict=True)):
        text, number = escape_token(token), str(token_id)
        text_width = display_width(text)
        columns = max(text_width, len(number))
        if used + columns > width or tokens[index - 1].endswith(b"\n"):
            rows.append(([], []))
            used = 0
        rows[-1][0].append(style.token(text, index) + " " * (columns - text_width))
        rows[-1][1].append(number.ljust(columns))
        used += columns + 1
    return "\n\n".join(f"{bar.join(a)}\n{style.dim(bar.join(b))}" for a, b in rows)


def merge_table(trace: MergeTrace, vocabulary: Vocabulary, style: Style) -> str:
    """Format the merges of a piece of text, with two lines per step: tokens and pair ranks.

    Brackets mark the rank of the pair that is merged next.

        " was" → 373
          ␣   w     a    s
           –   [8]   29
    """
    ids = " ".join(map(str, trace.ids))
    quoted = f'"{escape_token(trace.text.encode())}"'
    title = f"{style.bold(quoted)} → {ids}"
    if not trace.steps:
        return f"{title}\n  {style.dim('taken whole: nothing to merge')}"
    return "\n".join([title, *(_format_step(step, vocabulary, style) for step in trace.steps)])


def _format_step(step: MergeStep, vocabulary: Vocabulary, style: Style) -> str:
    tokens = [escape_spelling(token, vocabulary) for token in step.tokens]
    labels = [f" {_NO_MERGE if rank is None else rank} " for rank in step.ranks]
    if step.chosen is not None:
        labels[step.chosen] = f"[{step.ranks[step.chosen]}]"
    columns = list(zip(tokens, [*labels, ""], strict=True))
    above = "".join(token + " " * len(label) for token, label in columns)
    below = "".join(
        " " * display_width(token) + (style.bold if "[" in label else style.dim)(label)
        for token, label in columns
    )
    return f"  {above}\n  {below.rstrip()}".rstrip()
