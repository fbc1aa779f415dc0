"""An overview laid out for the eye, in as many columns as a terminal has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpt2np.interp.compare import Difference, worst_per_layer
from gpt2np.interp.summary import ArraySummary, AttentionWeight, Overview, token_bytes
from gpt2np.tokenizer.display import SPACE_SYMBOL, Style, display_width, escape_token, token_rows

_LABEL = 9  # columns for "block 47"
_TOKEN = 8  # of a token in a table
_CELL = _TOKEN + 6  # with " 100% "
_PLACE = 12  # of a token with its position: "12→" comes before it, " 100%  " after
_LOOK = 3 + _PLACE + 7
_BAR = 40
_PARTS = " ▏▎▍▌▋▊▉█"


def as_text(seen: Overview, table: Mapping[int, bytes], width: int, style: Style) -> str:
    """Tokens, logit lens, where the last token looks, and the next token."""
    tokens = token_bytes(seen.ids, table)
    parts = (
        [token_rows(tokens, seen.ids, width, style)],
        _lens(seen, table, width, style),
        _attention(seen, tokens, width, style),
        _next(seen, table, style),
    )
    return "\n\n".join("\n".join(part) for part in parts)


def lens_columns(width: int) -> int:
    """How many tokens' columns of the logit lens there is room for."""
    return max(1, (width - _LABEL) // _CELL)


def _lens(seen: Overview, table: Mapping[int, bytes], width: int, style: Style) -> Iterator[str]:
    """A row for each residual, a column for each token: as many of the last as there is room for.

    What the last row says, too, stands out.
    """
    total, shown = len(seen.ids), min(len(seen.lens.positions), lens_columns(width))
    which = "" if shown == total else f" (the last {shown} of {total} tokens)"
    yield style.bold(f"logit lens: what comes next, if the model ended there{which}")
    heads = [_fitted(token, _CELL) for token in token_bytes(seen.ids[-shown:], table)]
    yield style.dim("after".ljust(_LABEL) + "".join(heads).rstrip())
    ids, probabilities = seen.lens.ids[:, -shown:, 0], seen.lens.probabilities[:, -shown:, 0]
    for point, row, p in zip(seen.lens.points, ids, probabilities, strict=True):
        cells = []
        for number, token in enumerate(token_bytes(row.tolist(), table)):
            cell = f"{_fitted(token, _TOKEN)}{p[number]:5.0%}"
            cells.append(style.bold(cell) if row[number] == ids[-1, number] else cell)
        yield style.dim(_label(point).ljust(_LABEL)) + " ".join(cells)


def _attention(seen: Overview, tokens: Sequence[bytes], width: int, style: Style) -> Iterator[str]:
    """The largest weights of each block."""
    yield style.bold("attention: where the last token looks (head→token@position)")
    shown = max(1, (width - _LABEL) // _LOOK)
    for looks in seen.looks:
        cells = "".join(_look(look, tokens) for look in looks[:shown])
        yield style.dim(f"block {looks[0].layer}".ljust(_LABEL)) + cells.rstrip()


def _look(look: AttentionWeight, tokens: Sequence[bytes]) -> str:
    place = f"@{look.position}"
    token = _fitted(tokens[look.position], _PLACE - len(place)).rstrip() + place
    return f"{look.head:>2}→{_padded(token, _PLACE)}{look.weight:5.0%}  "


def _next(seen: Overview, table: Mapping[int, bytes], style: Style) -> Iterator[str]:
    """A bar for each of the likeliest, the first being the longest, and what the others share."""
    yield style.bold("next token")
    most = seen.next_probabilities[0]
    for token, p in zip(token_bytes(seen.next_ids, table), seen.next_probabilities, strict=True):
        yield f"{_fitted(token, 2 * _TOKEN)}{p:6.1%} {_bar(p / most)}".rstrip()
    others = seen.vocab_size - len(seen.next_ids)
    left = max(0.0, 1 - sum(seen.next_probabilities))
    yield style.dim(f"{f'{others:,} others':<{2 * _TOKEN}}{left:6.1%}")


def _bar(share: float) -> str:
    whole, part = divmod(round(share * _BAR * 8), 8)
    return _PARTS[-1] * whole + _PARTS[part].strip()


def numbers_table(numbers: Sequence[ArraySummary], style: Style) -> str:
    """A line for each array."""
    head = f"{'point':<26}{'shape':<18}{'least':>12}{'mean':>12}{'largest':>12}"
    lines = [
        f"{n.name:<26}{' × '.join(map(str, n.shape)):<18}"
        f"{n.least:>12.4g}{n.mean:>12.4g}{n.largest:>12.4g}"
        for n in numbers
    ]
    return "\n".join([style.bold("arrays"), style.dim(head), *lines])


def difference_table(differences: Sequence[Difference], style: Style) -> str:
    """A line for each layer, with the point in it that differs most."""
    title = "difference to transformers, where it is largest in each layer"
    head = f"{'layer':<{_LABEL}}{'point':<26}{'largest':>10}{'mean':>10}{'of numbers up to':>18}"
    lines = [
        f"{_label(d.point):<{_LABEL}}{d.point:<26}{d.largest:>10.1e}{d.mean:>10.1e}{d.size:>18.4g}"
        for d in worst_per_layer(differences)
    ]
    return "\n".join([style.bold(title), style.dim(head), *lines])


def _label(point: str) -> str:
    """The layer of a point: blocks.3.resid → block 3."""
    return f"block {point.split('.')[1]}" if point.startswith("blocks.") else point


def _fitted(token: bytes, columns: int) -> str:
    """A token as text that can be seen, in so many columns; what is too long ends in …"""
    text = escape_token(token).replace(" ", SPACE_SYMBOL)
    if display_width(text) >= columns:
        while display_width(text) >= columns - 1:
            text = text[:-1]
        text += "…"
    return _padded(text, columns)


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - display_width(text))
