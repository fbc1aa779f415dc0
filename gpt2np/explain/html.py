"""Small pieces of HTML: text goes in and is escaped, markup comes out.

Whatever comes from a prompt, a vocabulary or a model's name passes through `text`, `token` or
`literal`, which leave nothing in it that a browser would obey.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpt2np.tokenizer.display import SPACE_SYMBOL, escape_token


def text(value: object) -> str:
    """`value` as text, escaped for an element's content and for an attribute."""
    return html.escape(str(value))


def token(data: bytes) -> str:
    """A token as it can be seen, kept apart from the direction of what is around it."""
    return f'<bdi class="token">{text(token_text(data))}</bdi>'


def token_text(data: bytes) -> str:
    r"""A token as text that can be seen: spaces as "␣", a line end as "\n", half a character as
    its bytes."""
    return escape_token(data).replace(" ", SPACE_SYMBOL) or "∅"


def literal(prompt: str) -> str:
    """A prompt as it was given: its lines as lines, and signs for what can't be seen."""
    return "".join(map(_literal_character, prompt))


def _literal_character(character: str) -> str:
    if character.isprintable():
        return text(character)
    sign = "↵" if character == "\n" else text(escape_token(character.encode("utf-8", "replace")))
    return f'<span class="sign">{sign}</span>' + ("\n" if character == "\n" else "")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    *,
    kind: str = "",
    row_heads: bool = True,
) -> str:
    """A table of cells that are markup already; where it is too wide it scrolls by itself.

    The first cell of a row is its head, unless `row_heads` is false. `caption` is plain text.
    """
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "\n".join(f"<tr>{''.join(_cells(row, row_heads))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table class="{kind}"><caption><span>{text(caption)}</span></caption>'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], row_heads: bool) -> Iterable[str]:
    for at, cell in enumerate(row):
        yield f'<th scope="row">{cell}</th>' if row_heads and at == 0 else f"<td>{cell}</td>"


def bar(share: float, attributes: str = "", most: float = 1.0) -> str:
    """A share of 1 as the length of a bar; the longest possible one is `most`."""
    lengths = f"--p:{share:.4f}" + (f";--max:{most:.4f}" if most != 1 else "")
    return f'<span class="bar"{attributes} style="{lengths}"></span>'


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """What a reader may open; `summary` is markup. On paper it is always open."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>\n{body}</details>"


def source(*functions: Callable[..., Any] | type) -> str:
    """Which functions computed what is shown, each with its file."""
    listed = ", ".join(map(_named, functions))
    return f'<p class="source">Computed by {listed}.</p>'


def _named(function: Callable[..., Any] | type) -> str:
    name, file = function.__qualname__, function.__module__.replace(".", "/") + ".py"
    return f'<code data-function="{name}" data-file="{file}">{name}</code> in <code>{file}</code>'


def formula(lines: str) -> str:
    """A formula, in plain text with line ends where it has several lines."""
    return f'<p class="formula">{text(lines)}</p>'


def panel(name: str, title: str, says: str, body: str, *, level: int = 2) -> str:
    """A part of the page. `says` is markup: what the reader sees, in two or three sentences."""
    return (
        f'<section id="{name}" class="level{level}"><h{level}>{title}</h{level}>\n'
        f'<p class="says">{says}</p>\n{body}\n</section>'
    )
