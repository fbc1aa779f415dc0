r"""Tokens laid out for the eye: in rows over their ids, in a table, and merged step by step.

A token need not be text: it may be half a character, a line end, or an escape sequence that a
terminal would obey. What can't be seen is written as in Python's literals: "\n" for a line end,
"\u200b" for an invisible character, "\xf0" for a byte that is no character by itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpt2np.tokenizer.alphabet import to_bytes
from gpt2np.tokenizer.explain import ExplainedPiece, MergeStep
from gpt2np.tokenizer.offsets import TokenSpan
from gpt2np.tokenizer.vocabulary import SPACE, Vocabulary

SPACE_SIGN = "␣"
"""Stands for a space where one would not be seen."""

_NO_MERGE = "–"
_BACKGROUNDS = (189, 157, 223, 217, 159)  # of the 256 colours: pale, each unlike its neighbours
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


@dataclass(frozen=True)
class Style:
    """How to write on a terminal, or, without `colour`, anywhere."""

    colour: bool = False

    def token(self, text: str, number: int) -> str:
        """The token that is `number` in its text: tokens side by side differ in colour."""
        background = _BACKGROUNDS[number % len(_BACKGROUNDS)]
        return self._with(f"38;5;16;48;5;{background}", text)

    def faint(self, text: str) -> str:
        """What is not the main thing."""
        return self._with("2", text)

    def strong(self, text: str) -> str:
        """What one should look at."""
        return self._with("1;32", text)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def visible(data: bytes) -> str:
    r"""`data` as text that can be seen: b" caf\xc3" → " caf\\xc3"."""
    text = data.decode("utf-8", "backslashreplace")
    shown = "".join(map(_visible_character, text))
    joins_what_is_before = text[:1] and unicodedata.category(text[0])[0] == "M"
    return "◌" + shown if joins_what_is_before else shown


def _visible_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    escape = f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x80 else escape)


def visible_spelling(token: str, vocabulary: Vocabulary) -> str:
    """A token in the vocabulary's characters ("Ġthe") as text that can be seen ("␣the")."""
    data = to_bytes(token) if vocabulary.byte_level else token.replace(SPACE, " ").encode()
    return _with_signs([data])[0]


def columns_of(text: str) -> int:
    """How many columns of a terminal `text` takes: most characters one, Chinese ones two."""
    return sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@dataclass(frozen=True)
class _Cell:
    number: int
    token: str
    id: str

    @property
    def width(self) -> int:
        return max(columns_of(self.token), len(self.id))


def token_rows(tokens: Sequence[bytes], ids: Sequence[int], width: int, style: Style) -> str:
    """Tokens side by side with their ids beneath, in as many rows as `width` columns demand.

        G │PT   │2 │ was│ created
        38│11571│17│373 │2727

    A row also ends where the text's line does.
    """
    cells = [
        _Cell(number, visible(token), str(id))
        for number, (token, id) in enumerate(zip(tokens, ids, strict=True))
    ]
    ends = [token.endswith(b"\n") for token in tokens]
    return "\n\n".join(_row(row, style) for row in _rows(cells, ends, width))


def _rows(cells: list[_Cell], ends: list[bool], width: int) -> Iterator[list[_Cell]]:
    row: list[_Cell] = []
    taken = 0
    for number, cell in enumerate(cells):
        if row and (taken + cell.width > width or ends[number - 1]):
            yield row
            row, taken = [], 0
        row.append(cell)
        taken += cell.width + 1
    if row:
        yield row


def _row(cells: list[_Cell], style: Style) -> str:
    bar = " " if style.colour else "│"
    tokens = bar.join(
        style.token(cell.token, cell.number) + " " * (cell.width - columns_of(cell.token))
        for cell in cells
    )
    return f"{tokens}\n{style.faint(bar.join(cell.id.ljust(cell.width) for cell in cells))}"


def _with_signs(tokens: Sequence[bytes]) -> list[str]:
    return [visible(token).replace(" ", SPACE_SIGN) for token in tokens]


def offset_table(spans: Sequence[TokenSpan], tokens: Sequence[bytes], style: Style) -> str:
    """A line for each token: its id, and where in the text its characters and bytes are."""
    head = ("id", "chars", "bytes", "token")
    lines = [
        (str(span.id), f"{span.start}:{span.end}", f"{span.byte_start}:{span.byte_end}", token)
        for span, token in zip(spans, _with_signs(tokens), strict=True)
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(3)]

    def numbers(line: tuple[str, str, str, str]) -> str:
        return "  ".join(line[column].rjust(widths[column]) for column in range(3))

    rows = [f"{numbers(line)}  {style.token(line[3], at)}" for at, line in enumerate(lines)]
    return "\n".join([style.faint(f"{numbers(head)}  {head[3]}"), *rows])


def merge_table(piece: ExplainedPiece, vocabulary: Vocabulary, style: Style) -> str:
    """How a piece became tokens: two lines for each step, its tokens and under them the ranks of
    the pairs, the one that is merged next in brackets.

        " was" → 373
          ␣   w     a    s
           –   [8]   29
    """
    ids = " ".join(map(str, piece.ids))
    quoted = f'"{visible(piece.text.encode())}"'
    title = f"{style.strong(quoted)} → {ids}"
    if not piece.steps:
        return f"{title}\n  {style.faint('a token as it stands: nothing to merge')}"
    return "\n".join([title, *(_step(step, vocabulary, style) for step in piece.steps)])


def _step(step: MergeStep, vocabulary: Vocabulary, style: Style) -> str:
    tokens = [visible_spelling(token, vocabulary) for token in step.tokens]
    labels = [_rank_label(rank, at == step.chosen) for at, rank in enumerate(step.ranks)]
    columns = list(zip(tokens, [*labels, ""], strict=True))
    above = "".join(token + " " * len(label) for token, label in columns)
    below = "".join(" " * columns_of(token) + _marked(label, style) for token, label in columns)
    return f"  {above}\n  {below.rstrip()}".rstrip()


def _rank_label(rank: int | None, chosen: bool) -> str:
    return f"[{rank}]" if chosen else f" {_NO_MERGE if rank is None else rank} "


def _marked(label: str, style: Style) -> str:
    return style.strong(label) if label.startswith("[") else style.faint(label)
