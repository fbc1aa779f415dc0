"""The first panel: text → pieces → bytes → merges → ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpt2np.explain.html import (
    details,
    formula,
    literal,
    panel,
    source,
    table,
    text,
    token,
    token_text,
)
from gpt2np.explain.run import Run
from gpt2np.tokenizer import Tokenizer
from gpt2np.tokenizer.display import escape_spelling
from gpt2np.tokenizer.merge_trace import MergeStep, MergeTrace, merge_steps
from gpt2np.tokenizer.pre_tokenizer import make_pre_tokenizer
from gpt2np.tokenizer.vocabulary import Vocabulary, bytes_to_chars


@dataclass(frozen=True)
class PlacedPiece:
    """A piece of the text, and which of the page's tokens it became.

    Attributes:
        piece: how it became ids.
        tokens: their numbers in the window; a piece that the window cuts has only some.
    """

    piece: MergeTrace
    tokens: range


def placed_pieces(run: Run) -> list[PlacedPiece]:
    """The pieces that the window's tokens come from."""
    start, placed = 0, []
    length = run.window.stop - run.window.start
    for piece in run.lm.tokenizer.trace_merges(run.prompt, disallowed_special=()):
        first = start - run.window.start
        tokens = range(max(0, first), min(length, first + len(piece.ids)))
        start += len(piece.ids)
        if tokens:
            placed.append(PlacedPiece(piece, tokens))
    return placed


def shown_text(run: Run) -> str:
    """The prompt, or, of a prompt with a window, the pieces that are in it."""
    if len(run.ids) == len(run.all_ids):
        return run.prompt
    return "".join(placed.piece.text for placed in placed_pieces(run))


def text_panel(run: Run) -> str:
    """The panel's markup."""
    pieces = placed_pieces(run)
    vocabulary = run.lm.tokenizer.vocabulary
    longest = max((len(placed.piece.steps) for placed in pieces), default=0)
    merged = "\n".join(_merges(pieces, longest, vocabulary))
    says = (
        "A model reads numbers, not letters. The text is first split into pieces by one regular "
        "expression; each piece is written as bytes; and then, inside a piece, the pair of "
        "neighbours with the lowest rank is joined, again and again, until no pair is in the list "
        f"of {len(vocabulary.ranks):,} merges. What is left are tokens, and each has a number."
    )
    body = [
        f'<pre class="prompt" dir="auto">{literal(shown_text(run))}</pre>',
        _window_note(run),
        formula("next merge = the pair of neighbours with the lowest rank, the leftmost of equals"),
        source(Tokenizer.trace_merges, make_pre_tokenizer, bytes_to_chars, merge_steps),
        "<h3>Pieces, bytes, tokens, ids</h3>",
        _summary(run, pieces) if pieces else _empty(run),
        "<h3>Every merge, in order</h3>" if pieces else "",
        f'<p class="hint">A number between two tokens is the rank of that pair; a dash means that '
        f"no merge joins them. The framed pair is joined next.</p>{merged}"
        if pieces
        else "",
    ]
    return panel("text", "From text to ids", says, "\n".join(body))


def _window_note(run: Run) -> str:
    if len(run.ids) == len(run.all_ids):
        return ""
    return (
        f'<p class="hint">The prompt has {len(run.all_ids):,} tokens. This page is about a window '
        f"of them, {run.window.start} to {run.window.stop - 1}, which the model was given as if "
        "it were the whole text.</p>"
    )


def _empty(run: Run) -> str:
    return (
        f"<p>The prompt is empty. A model needs something to start from: the token "
        f"{token(run.bytes_of(run.ids[0]))}, id {run.ids[0]}, with which a text begins.</p>"
    )


def _summary(run: Run, pieces: list[PlacedPiece]) -> str:
    rows = []
    for number, placed in enumerate(pieces):
        data = placed.piece.text.encode("utf-8", "replace")
        tokens = [token(run.bytes_of(run.ids[at])) for at in placed.tokens]
        ids = [f"<data>{run.ids[at]}</data>" for at in placed.tokens]
        rows.append(
            (
                str(number + 1),
                f'<span class="piece">{token(data)}</span>',
                f'<code class="bytes">{data.hex(" ")}</code>',
                " ".join(tokens),
                " ".join(ids),
            )
        )
    head = ("", "piece", "bytes (hexadecimal)", "tokens", "ids")
    return table(head, rows, "Each piece of the text, its bytes, its tokens and their ids")


def _merges(pieces: list[PlacedPiece], longest: int, vocabulary: Vocabulary) -> Iterator[str]:
    shown = False
    for number, placed in enumerate(pieces):
        piece = placed.piece
        count = max(0, len(piece.steps) - 1)
        opened = not shown and bool(piece.steps) and len(piece.steps) == longest
        shown = shown or opened
        data = piece.text.encode("utf-8", "replace")
        merges = "1 merge" if count == 1 else f"{count} merges"
        summary = (
            f'{number + 1}. {token(data)} <span class="hint">{merges} → '
            f"{text(' '.join(map(str, piece.ids)))}</span>"
        )
        yield details(summary, _steps(piece, vocabulary), opened=opened)


def _steps(piece: MergeTrace, vocabulary: Vocabulary) -> str:
    if not piece.steps:
        return '<p class="hint">It is a token as it stands: nothing is merged.</p>'
    name = token_text(piece.text.encode("utf-8", "replace"))
    rows = [
        (str(number), _row(step, vocabulary), _next(step, vocabulary))
        for number, step in enumerate(piece.steps)
    ]
    return table(
        ("step", "tokens, and the ranks of the pairs", "joined next"),
        rows,
        f"The merges of the piece {name}",
        kind="merges",
    )


def _row(step: MergeStep, vocabulary: Vocabulary) -> str:
    parts = []
    for at, spelled in enumerate(step.tokens):
        chosen = step.chosen is not None and at in (step.chosen, step.chosen + 1)
        shown = text(escape_spelling(spelled, vocabulary))
        parts.append(f'<bdi class="token{" chosen" if chosen else ""}">{shown}</bdi>')
        if at < len(step.ranks):
            rank = "–" if step.ranks[at] is None else str(step.ranks[at])
            parts.append(
                f'<span class="rank{" chosen" if at == step.chosen else ""}">{rank}</span>'
            )
    return "".join(parts)


def _next(step: MergeStep, vocabulary: Vocabulary) -> str:
    if step.chosen is None:
        return '<span class="hint">none: done</span>'
    left, right = (escape_spelling(step.tokens[step.chosen + at], vocabulary) for at in (0, 1))
    return f"<bdi>{text(left)}</bdi> + <bdi>{text(right)}</bdi>, rank {step.ranks[step.chosen]}"
