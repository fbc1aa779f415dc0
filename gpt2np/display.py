"""HTML for notebooks: the pages and colored tokens that Jupyter shows for an object.

All text is escaped, because texts, tokens and model names are untrusted.
"""

from __future__ import annotations

import html
import math

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Sequence


def colored_tokens(
    prompt: str, tokens: Sequence[str], logprobs: Sequence[float] | None = None
) -> str:
    """Return the HTML of a gray prompt and the tokens after the prompt, colored by probability.

    Backgrounds range from red (unlikely) to green (likely); tooltips show probabilities. `logprobs`
    are natural logarithms; a token with NaN is not colored.
    """
    spans = []
    for token, logprob in zip(tokens, logprobs or [math.nan] * len(tokens), strict=True):
        if math.isnan(logprob):
            spans.append(f"<span>{_escape(token)}</span>")
        else:
            p = math.exp(logprob)
            color = f"background:hsla({120 * p:.0f},80%,50%,0.35)"  # hue 0 is red, 120 is green
            spans.append(f'<span style="{color}" title="{p:.3%}">{_escape(token)}</span>')
    gray_prompt = f'<span style="color:gray">{_escape(prompt)}</span>' if prompt else ""
    return f'<div style="white-space:pre-wrap">{gray_prompt}{"".join(spans)}</div>'


def shaded_tokens(tokens: Sequence[str], values: Sequence[float]) -> str:
    """Return the HTML of tokens, shaded green by positive and red by negative values."""
    largest = max(map(abs, values), default=0.0) or 1.0
    spans = [
        f'<span style="background:hsla({120 if value > 0 else 0},80%,40%,'
        f'{0.6 * abs(value) / largest:.2f})" title="{value:+.4f}">{_escape(token)}</span>'
        for token, value in zip(tokens, values, strict=True)
    ]
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'


def frame(page: str, height: int = 600) -> str:
    """Return the HTML of a sandboxed iframe that shows an HTML page."""
    style = f"width:100%;height:{height}px;border:1px solid gray"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{_escape(page)}"></iframe>'


def _escape(value: object) -> str:
    return html.escape(str(value))
