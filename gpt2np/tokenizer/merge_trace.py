"""Trace of the merges of a piece, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gpt2np.tokenizer.bpe import Ranks


@dataclass(frozen=True)
class MergeStep:
    """The tokens of a piece before a merge.

    Attributes:
        tokens: the tokens, spelled in the vocabulary's characters.
        ranks: rank of each pair of neighbours; None for a pair that no merge joins.
        chosen: index of the pair to merge next, the leftmost of lowest rank; None at the end.
    """

    tokens: tuple[str, ...]
    ranks: tuple[int | None, ...]
    chosen: int | None


@dataclass(frozen=True)
class MergeTrace:
    """How a piece of text becomes ids.

    Attributes:
        text: the piece.
        steps: from single bytes to the final tokens. Empty for an added token, and for a piece that
            is taken whole because it is a token.
        ids: the ids.
    """

    text: str
    steps: tuple[MergeStep, ...]
    ids: tuple[int, ...]


def merge_steps(tokens: list[str], ranks: Ranks) -> tuple[MergeStep, ...]:
    """Return the steps of `merge_pairs(tokens, ranks)`; the last one has the result."""
    steps = []
    while True:
        pair_ranks = [ranks.get(f"{left} {right}") for left, right in pairwise(tokens)]
        known = [rank for rank in pair_ranks if rank is not None]
        chosen = pair_ranks.index(min(known)) if known else None
        steps.append(MergeStep(tuple(tokens), tuple(pair_ranks), chosen))
        if chosen is None:
            return tuple(steps)
        merged = tokens[chosen] + tokens[chosen + 1]
        tokens = [*tokens[:chosen], merged, *tokens[chosen + 2 :]]
