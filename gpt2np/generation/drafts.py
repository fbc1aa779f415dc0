"""Speculative decoding: draft tokens from n-grams, and how many of them should pay off.

The model computes the logits at all draft tokens in one pass. At each position, a token is selected
from these logits, with the random number that decoding without drafts would use. Draft tokens are
accepted up to the first that differs from the selected token, so the text stays the same. This is
the verification of Leviathan et al. 2023 for a deterministic draft.

The last ids are looked up in the text so far, longest suffix first (prompt lookup, Saxena
2023). An n-gram table of frequent contexts is searched, too. The text and the table each propose a
next id. The id that is more likely to be accepted becomes the draft token, and the search goes on
after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpt2np.kernels.blas import small_kernels
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt2np.generation.ngram_table import NgramTable

# Time of a pass over n rows divided by that of one row; index 0 is unused. Means of the bundled
# model and of GPT-2 small on Zen 4, in one process. Even numbers suit the small-matrix kernel.
PASS_COSTS = (
    *(1.0, 1.0, 1.01, 1.25, 1.08, 1.32, 1.38, 1.55, 1.52),
    *(1.65, 1.68, 1.9, 1.87, 2.05, 2.1, 2.27, 2.25),
)
MAX_ROWS = len(PASS_COSTS) - 1
"""Maximum number of rows of a pass with draft tokens."""

_MIN_SPEEDUP = 1.02  # relative to no drafts; pays for the search
_SUFFIX_LENGTHS = (8, 4, 3, 2)  # of the text so far, in ids
_MIN_PROBABILITY = 0.03  # lower bound on the probability that a whole draft is accepted
_CONFIDENCE_LEVELS = 8  # intervals of the table's probabilities, each with an acceptance rate
_TOKEN_DECAY = 0.93  # each token multiplies the weight of earlier tokens in the rate by this
_PRIOR_TOKENS = 2.0  # weight of the initial acceptance rate, in tokens
_TEXT_PRIOR = 0.5  # initial acceptance rate of drafts from the text so far


class DraftSource:
    """Makes a drafter for each new sequence.

    Attributes:
        draft: an n-gram table, None for no draft tokens, or "auto".
        folder: the folder of the model's files, which may have an n-gram table.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.draft: NgramTable | Literal["auto"] | None = "auto"
        self.folder: Path | None = None

    def start(self) -> NgramDrafter | None:
        """Return the drafter of one sequence, if there is a source."""
        draft = self.draft
        if draft is None or (draft == "auto" and not small_kernels()):
            return None
        return NgramDrafter(lambda: self._auto_table if draft == "auto" else draft)

    @cached_property
    def _auto_table(self) -> NgramTable | None:
        from gpt2np.generation.ngram_table import find_ngram_table

        return find_ngram_table(self.folder, self._tokenizer.vocabulary.token_bytes)


class NgramDrafter:
    """Proposes draft tokens for one sequence, and estimates how likely each is to be accepted.

    Drafts from the text have an acceptance rate per suffix length; drafts from the table have an
    acceptance rate per interval of the table's probabilities.
    """

    def __init__(self, load_table: Callable[[], NgramTable | None]) -> None:
        """Draft from the text so far and an n-gram table, which the first draft loads."""
        self._load_table = load_table
        self._text: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}  # n-gram → index after its last occurrence
        self._proposed: list[tuple[int, int]] = []  # token ids with their sources
        levels = [(level + 0.5) / _CONFIDENCE_LEVELS for level in range(_CONFIDENCE_LEVELS)]
        priors = [*levels, *[_TEXT_PRIOR] * len(_SUFFIX_LENGTHS)]
        # Decaying sums by source: first the intervals of probability, then the suffix lengths.
        self._n_accepted = [prior * _PRIOR_TOKENS for prior in priors]
        self._n_tried = [_PRIOR_TOKENS for _ in priors]

    @cached_property
    def _table(self) -> NgramTable | None:
        return self._load_table()

    def propose(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        length: int,
        min_probability: float = 0.0,
        vocab_size: float = math.inf,
    ) -> tuple[list[int], list[float]]:
        """Propose up to `length` draft tokens for the text of `prompt` and `ids`.

        Also returns, for each draft token, the probability that this token and all draft tokens
        before it are accepted. The draft ends before a token whose probability is below
        `min_probability`, and before an id ≥ `vocab_size`, for which the model has no embedding.
        """
        n_known = len(self._text) - len(prompt)
        self._append(ids[n_known:] if n_known >= 0 else [*prompt[n_known:], *ids])
        context = self._text[-_SUFFIX_LENGTHS[0] :]
        draft: list[int] = []
        probabilities: list[float] = []
        self._proposed = []
        total = 1.0
        while len(draft) < length:
            best = self._next(context)
            if best is None or best[0] >= vocab_size:
                break
            token_id, source, probability = best
            total *= probability
            self._proposed.append((token_id, source))
            if total < max(min_probability, _MIN_PROBABILITY):
                break
            draft.append(token_id)
            probabilities.append(total)
            context.append(token_id)
        return draft, probabilities

    def update(self, new_ids: Sequence[int]) -> None:
        """Compare the last proposal with the generated ids; update the acceptance rates.

        All proposed tokens count, also those that the forward pass did not verify.
        """
        for (token_id, source), new_id in zip(self._proposed, new_ids, strict=False):
            is_right = token_id == new_id
            self._n_accepted[source] = self._n_accepted[source] * _TOKEN_DECAY + is_right
            self._n_tried[source] = self._n_tried[source] * _TOKEN_DECAY + 1
            if not is_right:
                break
        self._proposed = []  # the next step may propose nothing

    def _next(self, context: Sequence[int]) -> tuple[int, int, float] | None:
        """Return the best draft token after `context`, its source and acceptance probability."""
        best: tuple[int, int, float] | None = None
        if self._table and (found := self._table.lookup(context)):
            token_id, confidence = found
            source = confidence * _CONFIDENCE_LEVELS >> 8
            best = token_id, source, self._n_accepted[source] / self._n_tried[source]
        for i, n in enumerate(_SUFFIX_LENGTHS):
            end = self._index.get(tuple(context[-n:]))
            if end is not None:
                source = _CONFIDENCE_LEVELS + i
                probability = self._n_accepted[source] / self._n_tried[source]
                if best is None or probability >= best[2]:
                    best = self._text[end], source, probability
                break
        return best

    def _append(self, new_ids: Sequence[int]) -> None:
        """Append ids to the text so far, and index the n-grams that precede each new id."""
        text, index = self._text, self._index
        for token_id in new_ids:
            end = len(text)
            for n in _SUFFIX_LENGTHS:
                if end >= n:
                    index[tuple(text[end - n :])] = end
            text.append(token_id)


@lru_cache
def min_probability(n_sequences: int) -> float:
    """Return the minimum acceptance probability at which draft tokens can pay off.

    A draft token makes the pass longer. It pays off if it yields more tokens, on average, than
    decoding without drafts yields in the added time.
    """
    costs = [cost / PASS_COSTS[n_sequences] - 1 for cost in PASS_COSTS[n_sequences + 1 :]]
    return max(0.0, min(n_sequences * cost / r for r, cost in enumerate(costs, 1)))


def best_count(candidates: Sequence[tuple[float, int, int]], n_sequences: int) -> int:
    """Return how many `candidates`, draft tokens sorted likeliest first, make decoding fastest."""
    best, n_tokens = 0, float(n_sequences)
    best_speed = _MIN_SPEEDUP * n_tokens / PASS_COSTS[n_sequences]
    for count, (negative, _, _) in enumerate(candidates[: MAX_ROWS - n_sequences], 1):
        n_tokens -= negative
        if (speed := n_tokens / PASS_COSTS[n_sequences + count]) > best_speed:
            best, best_speed = count, speed
    return best
