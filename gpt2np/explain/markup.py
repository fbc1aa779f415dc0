"""HTML helpers of the page: escaped text, tables, sections and numbers.

`escape`, `token_markup` and `escape_prompt` escape all text from prompts, vocabularies and model
names, so that the text cannot act as markup.

The markup of a number holds all digits, the array's name and the index, so that readers can check
the number with the library. The page embeds only the arrays that the script needs.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpt2np.interp.description import array_json
from gpt2np.kernels.array import Array
from gpt2np.tokenizer.display import SPACE_SYMBOL, escape_token

_MINUS = "\N{MINUS SIGN}"


def escape(value: object) -> str:
    """Escape a value for use in an attribute or as the content of an element."""
    return html.escape(str(value))


def token_text(data: bytes) -> str:
    r"""Return a token's bytes as visible text.

    A space becomes "␣", a line end "\n", and a byte of an incomplete character "\xc3".
    """
    return escape_token(data).replace(" ", SPACE_SYMBOL) or "∅"


def token_markup(data: bytes) -> str:
    """Return a token as a bdi element: its writing direction does not affect other text."""
    return f'<bdi class="token">{escape(token_text(data))}</bdi>'


def escape_prompt(prompt: str) -> str:
    """Escape a prompt, and replace invisible characters by visible symbols."""
    return "".join(map(_escape_character, prompt))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return escape(character)
    sign = "↵" if character == "\n" else escape(escape_token(character.encode("utf-8", "replace")))
    return f'<span class="sign">{sign}</span>' + ("\n" if character == "\n" else "")


def section(name: str, title: str, summary: str, body: str, *, level: int = 2) -> str:
    """Return a section of the page; `summary` and `body` are markup."""
    return (
        f'<section id="{name}" class="level{level}"><h{level}>{title}</h{level}>\n'
        f'<p class="says">{summary}</p>\n{body}\n</section>'
    )


def formula(lines: str) -> str:
    """Return the markup of a formula. `lines` is plain text of one or more lines."""
    return f'<p class="formula">{escape(lines)}</p>'


def computed_by(*functions: Callable[..., Any] | type) -> str:
    """Return markup that names the functions that computed the numbers, and their files."""
    sources = ((f.__qualname__, f.__module__.replace(".", "/") + ".py") for f in functions)
    names = ", ".join(
        f'<code data-function="{name}" data-file="{file}">{name}</code> in <code>{file}</code>'
        for name, file in sources
    )
    return f'<p class="source">Computed by {names}.</p>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    *,
    kind: str = "",
    row_heads: bool = True,
) -> str:
    """Return the markup of a table; a table wider than the page scrolls.

    Cells are markup, `caption` is plain text, and `kind` is a CSS class. The first cell of each row
    is a header unless `row_heads` is false.
    """
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = []
    for first, *cells in rows:
        head_cell = f'<th scope="row">{first}</th>' if row_heads else f"<td>{first}</td>"
        lines.append(f"<tr>{head_cell}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{kind}"><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def bar(share: float, attributes: str = "", longest: float = 1.0) -> str:
    """Return the markup of a bar of length `share` / `longest`."""
    lengths = f"--p:{share:.4f}" + (f";--max:{longest:.4f}" if longest != 1 else "")
    return f'<span class="bar"{attributes} style="{lengths}"></span>'


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """Return a collapsible element, which is open in print; `summary` and `body` are markup."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>\n{body}</details>"


class Numbers:
    """The arrays that a page displays, by name; the page embeds the arrays named in `carried`."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.carried: list[str] = []

    def add(self, name: str, array: Array, *, carry: bool = False) -> Array:
        """Register and return an array; if `carry` is true, the page embeds the array."""
        self.arrays[name] = array
        if carry:
            self.carried.append(name)
        return array

    def show(self, name: str, *index: int, style: str = "4g") -> str:
        """Return one number of an array as an HTML data element. `style`: see `format_number`."""
        value = self.arrays[name][index]
        index_text = ",".join(map(str, index))
        rounded = format_number(value, style)
        return f'<data data-of="{name}" data-at="{index_text}" value="{value!s}">{rounded}</data>'

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return the embedded arrays by name: dtype, shape, and little-endian bytes in base64."""
        return {name: array_json(self.arrays[name]) for name in self.carried}


def format_number(value: float, style: str = "4g") -> str:
    """Round a number for display.

    `style` is "p" (a probability), "f3" (three decimals), "4g" (four significant digits), or "n"
    (an integer with thousands separators).
    """
    number = float(value)
    if number == 0:
        rounded = "0"
    elif style == "n" or (style[0] not in "fp" and 1e4 <= abs(number) < 1e7):
        rounded = f"{number:,.0f}"
    elif style == "p":
        rounded = f"{number:.4f}" if number >= 0.0005 else f"{number:.1e}"
    elif style[0] == "f":
        rounded = f"{number:.{style[1:]}f}"
    else:
        rounded = f"{number:#.{style}}".rstrip(".")
    return rounded.replace("e-0", "e-").replace("e+0", "e+").replace("-", _MINUS)
