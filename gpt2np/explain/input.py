"""Page sections on the input: pre-tokenized pieces, bytes, merges, token ids and embeddings.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpt2np.explain.figures import strip
from gpt2np.explain.markup import (
    Numbers,
    computed_by,
    details,
    escape,
    escape_prompt,
    formula,
    section,
    table,
    token_markup,
    token_text,
)
from gpt2np.explain.run import Run, token_cells
from gpt2np.interp.weights import nearest_tokens
from gpt2np.limits import limits
from gpt2np.model.gpt2 import gpt2
from gpt2np.tokenizer import Tokenizer
from gpt2np.tokenizer.display import escape_spelling
from gpt2np.tokenizer.pre_tokenizer import make_pre_tokenizer
from gpt2np.tokenizer.trace import MergeStep, MergeTrace, merge_steps
from gpt2np.tokenizer.vocabulary import Vocabulary, bytes_to_chars

_N_NEAREST = 6


@dataclass(frozen=True)
class PlacedPiece:
    """A piece from the pre-tokenizer, and the positions of its tokens on the page."""

    piece: MergeTrace
    tokens: range  # without the tokens outside the window
    is_cut: bool = False  # the piece is long, so `piece` has only these tokens, and no merges


def pieces_in_window(run: Run) -> list[PlacedPiece]:
    """Return the pre-tokenizer's pieces of the prompt that have a token on the page."""
    if not run.is_encoding:  # the prompt was given as ids, such as those of a generated text
        texts = run.lm.tokenizer.token_texts(run.ids)
        return [
            PlacedPiece(MergeTrace(text, (), (token_id,)), range(i, i + 1))
            for i, (text, token_id) in enumerate(zip(texts, run.ids, strict=True))
        ]
    start, placed = 0, []
    length = run.window.stop - run.window.start
    tokenizer = run.lm.tokenizer
    for piece, ids, is_added in tokenizer.iter_pieces(run.prompt, disallowed_special=()):
        first = start - run.window.start
        if first >= length:
            break
        tokens = range(max(0, first), min(length, first + len(ids)))
        start += len(ids)
        if tokens and len(piece) > limits().max_explained_piece_characters:
            ids = tuple(run.ids[tokens.start : tokens.stop])
            placed.append(PlacedPiece(MergeTrace(tokenizer.decode(ids), (), ids), tokens, True))
        elif tokens:
            steps = () if is_added else tokenizer.merge_steps(piece)
            placed.append(PlacedPiece(MergeTrace(piece, steps, ids), tokens))
    return placed


def text_in_window(run: Run) -> str:
    """Return the part of the prompt that the page shows, in whole pre-tokenizer pieces."""
    if len(run.ids) == len(run.all_ids):
        return run.prompt
    return "".join(placed.piece.text for placed in pieces_in_window(run))


def text_section(run: Run) -> str:
    """Return the markup of the section on the prompt's text and tokens."""
    pieces = pieces_in_window(run)
    vocabulary = run.lm.tokenizer.vocabulary
    merges = "\n".join(_merge_details(pieces, vocabulary))
    summary = (
        "A model reads numbers, not letters. A regular expression splits the text into pieces, "
        "and each piece is written as bytes; inside a piece, the pair of neighbors with the "
        "lowest rank is joined, again and again, until no pair is in the list of "
        f"{len(vocabulary.ranks):,} merges. The results are the tokens, and each has a number, "
        "its id."
    )
    body = [
        f'<pre class="prompt" dir="auto">{escape_prompt(text_in_window(run))}</pre>',
        _window_note(run),
        formula("next merge = the pair of neighbors with the lowest rank, the leftmost of equals"),
        computed_by(Tokenizer.trace_merges, make_pre_tokenizer, bytes_to_chars, merge_steps),
        "<h3>Pieces, bytes, tokens, ids</h3>",
        _piece_table(run, pieces)
        if pieces
        else "<p>The prompt is empty. A model needs a first token to start from: "
        f"{run.token(run.ids[0])}, id {run.ids[0]}, which marks the beginning of a text.</p>",
    ]
    if pieces:
        body += [
            "<h3>Every merge, in order</h3>",
            '<p class="hint">A number between two tokens is the rank of that pair; a dash means '
            f"that no merge joins them. The framed pair is joined next.</p>{merges}",
        ]
    return section("text", "From text to ids", summary, "\n".join(body))


def _window_note(run: Run) -> str:
    if not run.is_encoding:
        return (
            '<p class="hint">The model received these tokens as they are. The text alone would be '
            "encoded as other tokens, so this page shows no merges.</p>"
        )
    if len(run.ids) == len(run.all_ids):
        return ""
    return (
        f'<p class="hint">The prompt has {len(run.all_ids):,} tokens. This page shows a window '
        f"of them, {run.window.start} to {run.window.stop - 1}, which the model received as if "
        "it were the whole text.</p>"
    )


def _piece_table(run: Run, pieces: list[PlacedPiece]) -> str:
    rows = []
    for number, placed in enumerate(pieces):
        data = placed.piece.text.encode("utf-8", "replace")
        ids = [run.ids[position] for position in placed.tokens]
        piece = f'<span class="piece">{token_markup(data)}</span>'
        hexadecimal = f'<code class="bytes">{data.hex(" ")}</code>'
        numbers = " ".join(f"<data>{token_id}</data>" for token_id in ids)
        tokens = " ".join(map(run.token, ids))
        rows.append((str(number + 1), piece, hexadecimal, tokens, numbers))
    head = ("", "piece", "bytes (hexadecimal)", "tokens", "ids")
    return table(head, rows, "Each piece of the text, its bytes, its tokens and their ids")


def _merge_details(pieces: list[PlacedPiece], vocabulary: Vocabulary) -> Iterator[str]:
    """Yield a collapsible table of merges for each piece; the longest table is open."""
    lengths = [len(placed.piece.steps) for placed in pieces]
    longest = lengths.index(max(lengths)) if any(lengths) else None
    for number, placed in enumerate(pieces):
        piece = placed.piece
        count = max(0, len(piece.steps) - 1)
        merges = "1 merge" if count == 1 else f"{count} merges"
        if placed.is_cut:
            merges = "a part of a long piece, without its merges"
        summary = (
            f"{number + 1}. {token_markup(piece.text.encode('utf-8', 'replace'))} "
            f'<span class="hint">{merges} → {escape(" ".join(map(str, piece.ids)))}</span>'
        )
        if placed.is_cut:
            yield f"<p>{summary}</p>"
        else:
            yield details(summary, _merge_table(piece, vocabulary), opened=number == longest)


def _merge_table(piece: MergeTrace, vocabulary: Vocabulary) -> str:
    if not piece.steps:
        return '<p class="hint">The piece is a token by itself: nothing is merged.</p>'
    name = token_text(piece.text.encode("utf-8", "replace"))
    rows = [
        (str(number), _ranked_pairs(step, vocabulary), _next_merge(step, vocabulary))
        for number, step in enumerate(piece.steps)
    ]
    head = ("step", "tokens, and the ranks of the pairs", "joined next")
    return table(head, rows, f"The merges of the piece {name}", kind="merges")


def _ranked_pairs(step: MergeStep, vocabulary: Vocabulary) -> str:
    parts = []
    for i, spelling in enumerate(step.tokens):
        chosen = step.chosen is not None and i in (step.chosen, step.chosen + 1)
        spelled = escape(escape_spelling(spelling, vocabulary))
        parts.append(f'<bdi class="token{" chosen" if chosen else ""}">{spelled}</bdi>')
        if i < len(step.ranks):
            rank = "–" if step.ranks[i] is None else str(step.ranks[i])
            parts.append(f'<span class="rank{" chosen" if i == step.chosen else ""}">{rank}</span>')
    return "".join(parts)


def _next_merge(step: MergeStep, vocabulary: Vocabulary) -> str:
    if step.chosen is None:
        return '<span class="hint">none: done</span>'
    left, right = (escape_spelling(step.tokens[step.chosen + i], vocabulary) for i in (0, 1))
    return f"<bdi>{escape(left)}</bdi> + <bdi>{escape(right)}</bdi>, rank {step.ranks[step.chosen]}"


def embedding_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on embeddings."""
    n, config = len(run.ids), run.config
    wte = run.model.weights["wte.weight"]
    vectors = {
        "wte": ("token: rows of wte", wte[run.ids]),
        "wpe": ("position: rows of wpe", run.model.weights["wpe.weight"][:n]),
        "embed": ("their sum: the residual stream at its start", run.arrays["embed"]),
    }
    for name, (_, array) in vectors.items():
        numbers.add(name, array, carry=name != "embed")
    nearest, cosines = nearest_tokens(wte, run.ids, _N_NEAREST)
    numbers.add("nearest", nearest)
    numbers.add("cosine", cosines)
    summary = (
        f"Each id selects a row of {config.n_embd} numbers from a table of {config.vocab_size:,} "
        "rows; each position selects a row of a second table; the two rows are added. "
        "The row of a token is everything the model knows about the token on its own: rows that "
        "point in the same direction belong to tokens that are used alike."
    )
    body = [
        formula("x = wte[id] + wpe[position]"),
        computed_by(gpt2),
        '<p class="hint">A row is a token, a column a channel; blue is above zero, orange below, '
        "and a stronger color means further from zero.</p>",
        *(strip(name, title, array) for name, (title, array) in vectors.items()),
        "<h3>The nearest tokens</h3>",
        '<p class="hint">By the cosine of the angle between two rows of wte: 1 is the same '
        "direction, 0 a right angle.</p>",
        computed_by(nearest_tokens),
        _nearest_table(run, numbers),
    ]
    return section("embedding", "From ids to vectors", summary, "\n".join(body))


def _nearest_table(run: Run, numbers: Numbers) -> str:
    nearest = numbers.arrays["nearest"]
    rows = [
        (run.numbered_token(i), *token_cells(run, numbers, nearest[i], "cosine", i, style="f2"))
        for i in range(len(run.ids))
    ]
    head = ("token", *(f"{place + 1}." for place in range(nearest.shape[1])))
    return table(head, rows, "The tokens nearest to each token of the prompt, with their cosines")
