"""Every step from a piece of text to its tokens, as one would write it down by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gpt2np.tokenizer.merge import Ranks


@dataclass(frozen=True)
class MergeStep:
    """The tokens of a piece at one moment, and what is done next.

    Attributes:
        tokens: the tokens, spelled in the vocabulary's characters.
        ranks: the rank of each pair of neighbours, None for a pair that no merge joins.
        chosen: which pair is merged next: the leftmost of lowest rank. None: none is, the end.
    """

    tokens: tuple[str, ...]
    ranks: tuple[int | None, ...]
    chosen: int | None


@dataclass(frozen=True)
class ExplainedPiece:
    """How a piece of text became ids.

    Attributes:
        text: the piece.
        steps: from single bytes to the tokens; none for an added token, and for a piece that is
            taken whole because it is a token.
        ids: the ids.
    """

    text: str
    steps: tuple[MergeStep, ...]
    ids: tuple[int, ...]


def merge_steps(tokens: list[str], ranks: Ranks) -> tuple[MergeStep, ...]:
    """The steps of `merge_pairs(tokens, ranks)`; the last one has its result."""
    steps = []
    while True:
        of_pairs = [ranks.get(f"{left} {right}") for left, right in pairwise(tokens)]
        known = [rank for rank in of_pairs if rank is not None]
        chosen = of_pairs.index(min(known)) if known else None
        steps.append(MergeStep(tuple(tokens), tuple(of_pairs), chosen))
        if chosen is None:
            return tuple(steps)
        joined = tokens[chosen] + tokens[chosen + 1]
        tokens = [*tokens[:chosen], joined, *tokens[chosen + 2 :]]
