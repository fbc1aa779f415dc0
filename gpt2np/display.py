"""HTML for notebooks: the cards, tables and coloured tokens that Jupyter shows for an object.

All text is escaped, because texts, tokens and model names come from outside.
"""

from __future__ import annotations

import html
import math

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_ROWS = 60
"""Rows of a table; the table says how many more there are."""

MAX_TOKENS = 1000
"""Tokens of a coloured text; the text says how many more there are."""


def card(title: str, rows: Mapping[str, object]) -> str:
    """Return the markup of a title over a table with a name and a value in each row."""
    return table((), rows.items(), title)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> str:
    """Return the markup of a table. The first cell of each row is its heading."""
    rows = list(rows)
    head = "".join(f"<th>{_escape(column)}</th>" for column in columns)
    lines = [f"<tr>{head}</tr>"] if head else []
    for first, *cells in rows[:MAX_ROWS]:
        data = "".join(f'<td style="text-align:left">{_escape(cell)}</td>' for cell in cells)
        lines.append(f'<tr><th style="text-align:left">{_escape(first)}</th>{data}</tr>')
    if more := len(rows) - MAX_ROWS:
        lines += [f"<tr><td>… {more:,} more rows</td></tr>"] if more > 0 else []
    return f"<table><caption>{_escape(title)}</caption>{''.join(lines)}</table>"


def coloured_tokens(
    prompt: str, tokens: Sequence[str], logprobs: Sequence[float] | None = None
) -> str:
    """Return the markup of a prompt, in grey, and of the tokens after the prompt.

    The background of a token is green for a likely and red for an unlikely token; `logprobs` has
    the natural log probabilities, with NaN for a token without a probability. A tooltip shows the
    probability.
    """
    spans = []
    for token, logprob in zip(tokens, logprobs or [math.nan] * len(tokens), strict=True):
        if math.isnan(logprob):
            spans.append(f"<span>{_escape(token)}</span>")
        else:
            p = math.exp(logprob)
            colour = f"background:hsla({120 * p:.0f},80%,50%,0.35)"  # hue 0 is red, 120 is green
            spans.append(f'<span style="{colour}" title="{p:.3%}">{_escape(token)}</span>')
        if len(spans) == MAX_TOKENS < len(tokens):
            spans.append(f"<span> … {len(tokens) - MAX_TOKENS:,} more tokens</span>")
            break
    grey_prompt = f'<span style="color:gray">{_escape(prompt)}</span>' if prompt else ""
    return f'<div style="white-space:pre-wrap">{grey_prompt}{"".join(spans)}</div>'


def frame(page: str, height: int = 600) -> str:
    """Return the markup of an isolated frame that shows a whole HTML page."""
    style = f"width:100%;height:{height}px;border:1px solid gray"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{_escape(page)}"></iframe>'


def _escape(value: object) -> str:
    return html.escape(str(value))
