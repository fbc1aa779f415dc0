"""The prompt as pieces of the pre-tokenizer, and the merges that make their tokens."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from gpt2np.explain.run import Run
from gpt2np.interp.description import Json
from gpt2np.limits import limits
from gpt2np.tokenizer.display import escape_spelling
from gpt2np.tokenizer.trace import MergeStep, MergeTrace
from gpt2np.tokenizer.vocabulary import Vocabulary


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


def describe_text(run: Run) -> Json:
    """Describe the prompt, the window, and the pieces with their merges."""
    vocabulary = run.lm.tokenizer.vocabulary
    return {
        "prompt": text_in_window(run),
        "n_tokens": len(run.all_ids),  # of the whole prompt
        "window": [run.window.start, run.window.stop],
        "is_encoding": run.is_encoding,
        "pieces": [_piece_json(placed, vocabulary) for placed in pieces_in_window(run)],
    }


def _piece_json(placed: PlacedPiece, vocabulary: Vocabulary) -> Json:
    data = placed.piece.text.encode("utf-8", "replace")
    return {
        "bytes": base64.b64encode(data).decode("ascii"),
        "first": placed.tokens.start,
        "n_tokens": len(placed.tokens),
        "is_cut": placed.is_cut,
        "steps": [_step_json(step, vocabulary) for step in placed.piece.steps],
    }


def _step_json(step: MergeStep, vocabulary: Vocabulary) -> Json:
    tokens = [escape_spelling(token, vocabulary) for token in step.tokens]
    return {"tokens": tokens, "ranks": list(step.ranks), "chosen": step.chosen}
