"""Building blocks of the page: escaped text, tables, sections, and traceable numbers.

Text from a prompt, a vocabulary or a model's name passes through `escape`, `token_markup` or
`escape_prompt`, so that none of it can act as markup.

Every displayed number names its array and index and holds all its digits. The arrays that the
script needs travel with the page, bit for bit. So every number can be checked against the library.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.tokenizer.display import SPACE_SYMBOL, escape_token

_MINUS = "\N{MINUS SIGN}"


def escape(value: object) -> str:
    """Escape a value for use as an element's content or in an attribute."""
    return html.escape(str(value))


def token_text(data: bytes) -> str:
    r"""Return a token's bytes as visible text.

    A space becomes "␣", a line end "\n", and a byte of an incomplete character "\xc3".
    """
    return escape_token(data).replace(" ", SPACE_SYMBOL) or "∅"


def token_markup(data: bytes) -> str:
    """Return a token as an element whose writing direction is isolated from its surroundings."""
    return f'<bdi class="token">{escape(token_text(data))}</bdi>'


def escape_prompt(prompt: str) -> str:
    """Escape a prompt line by line, with visible signs for invisible characters."""
    return "".join(map(_escape_character, prompt))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return escape(character)
    sign = "↵" if character == "\n" else escape(escape_token(character.encode("utf-8", "replace")))
    return f'<span class="sign">{sign}</span>' + ("\n" if character == "\n" else "")


def section(name: str, title: str, summary: str, body: str, *, level: int = 2) -> str:
    """Return a section of the page; `summary` is markup of two or three sentences."""
    return (
        f'<section id="{name}" class="level{level}"><h{level}>{title}</h{level}>\n'
        f'<p class="says">{summary}</p>\n{body}\n</section>'
    )


def formula(lines: str) -> str:
    """Return a formula given as plain text, which may have several lines."""
    return f'<p class="formula">{escape(lines)}</p>'


def computed_by(*functions: Callable[..., Any] | type) -> str:
    """Name the functions that computed the numbers of a section, each with its file."""
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
    """Return a table of markup cells; a table wider than the page scrolls by itself.

    The first cell of a row is its header unless `row_heads` is false. `caption` is plain text.
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
    """Return a bar as long as a share of 1, on a scale that ends at `longest`."""
    lengths = f"--p:{share:.4f}" + (f";--max:{longest:.4f}" if longest != 1 else "")
    return f'<span class="bar"{attributes} style="{lengths}"></span>'


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """Return a collapsible part with a markup summary; it is always open in print."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>\n{body}</details>"


class Numbers:
    """The arrays displayed on a page, by name; those `carried` are embedded for the script."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.carried: list[str] = []

    def add(self, name: str, array: Array, *, carry: bool = False) -> Array:
        """Register an array under a name; with `carry`, embed it in the page."""
        self.arrays[name] = array
        if carry:
            self.carried.append(name)
        return array

    def show(self, name: str, *index: int, style: str = "4g") -> str:
        """Return one number of an array as a `data` element; for `style` see `format_number`."""
        value = self.arrays[name][index]
        at = ",".join(map(str, index))
        rounded = format_number(value, style)
        return f'<data data-of="{name}" data-at="{at}" value="{value!s}">{rounded}</data>'

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return the embedded arrays: name → dtype, shape and base64 of the little-endian bytes."""
        content = {}
        for name, array in ((name, self.arrays[name]) for name in self.carried):
            data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            encoded = base64.b64encode(data).decode("ascii")
            shape = list(array.shape)
            content[name] = {"dtype": array.dtype.name, "shape": shape, "base64": encoded}
        return content


def format_number(value: float, style: str = "4g") -> str:
    """Round a number for display.

    Styles: "p" a probability, "f3" three decimals, "4g" four significant digits, "n" an integer
    with thousands separators.
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


def script_json(content: object) -> str:
    """Return JSON that is safe inside a script element: it cannot contain a closing tag."""
    encoded = json.dumps(content, separators=(",", ":"))
    for character in "<>&":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded
