"""Speculative decoding: several tokens per forward pass. The generated text stays the same.

Draft tokens come from earlier text of the sequence (prompt lookup, Saxena 2023) or from a smaller
draft model. The target model computes the logits at all draft tokens in one pass. At each position,
a token is selected from these logits, with the random number that decoding without drafts would
use. Draft tokens are accepted up to the first that differs from the selected token. This is the
verification of Leviathan et al. 2023 for a deterministic draft.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import RandomGenerator, next_id
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, last_token_indices

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint

MAX_DRAFT = 15  # draft tokens per pass
_ROW_COST = 0.1  # cost of another token in a pass, relative to the pass; measured with 8 tokens
_MIN_SPEEDUP = 1.1  # drafts pay off above this ratio of the speeds with and without drafts
_DECAY = 0.85  # each draft multiplies the weight of earlier drafts in the acceptance rate by this
_NGRAM_SIZES = (3, 2)  # n-grams of prompt lookup, in the order of the search
_SHORT_CONTEXT = 8  # context in tokens of a draft model whose drafts do not pay off


class SpeculatedSequence(Protocol):
    """The attributes of a RunningSequence that drafting reads."""

    prompt: Sequence[int]
    ids: list[int]
    vocab_size: int
    options: GenerationOptions
    eos_token_ids: Collection[int]
    constraint: Constraint | None
    rng: RandomGenerator
    speculation: Speculation | None

    @property
    def length(self) -> int: ...
    @property
    def tokens_left(self) -> int: ...


class Speculation:
    """The source of one sequence's draft tokens, which also decides their number.

    The recent acceptance rate and the cost of a draft token determine the best draft length. If no
    length pays off, a single draft token is tried after a pause of several steps. Each rejected
    draft token lengthens the pause.
    """

    def __init__(self, model: GPT2, draft: GPT2 | None) -> None:
        """Set the target model and the draft model; `draft=None` selects prompt lookup."""
        self.draft = None if draft is None else DraftModel(draft)
        self.lookup = PromptLookup()
        self._cost = draft.weights.parameters / model.weights.parameters if draft else 0.0
        self._n_accepted, self._n_tried = 1.2, 2.0  # decaying sums; the start is a prior
        self._pause = 0 if draft is None else 2
        self._n_paused = self._pause
        self.pays_off = True  # whether the last draft was expected to pay off

    def draft_length(self, batch_size: int) -> int:
        """Return the number of draft tokens to propose for the next forward pass."""
        row_cost = _ROW_COST * batch_size / (1 + _ROW_COST * (batch_size - 1))
        acceptance_rate = self._n_accepted / self._n_tried
        best = best_length(round(acceptance_rate, 2), round(row_cost + self._cost, 3))
        self.pays_off = best > 0
        if not self.pays_off:
            self._n_paused += 1
            return int(self._n_paused > self._pause)
        return best

    def update_acceptance(self, n_drafted: int, n_accepted: int) -> None:
        """Record how many of the last draft's tokens were accepted."""
        if n_drafted == 0:
            return
        self._n_accepted = self._n_accepted * _DECAY + n_accepted
        self._n_tried = self._n_tried * _DECAY + n_accepted + (n_accepted < n_drafted)
        if not self.pays_off:
            self._pause = min(256, 4 * self._pause + 4) if n_accepted == 0 else self._pause // 4
            self._n_paused = 0


@lru_cache
def best_length(acceptance_rate: float, cost: float) -> int:
    """Return the draft length k, 0 … 15, that yields the most tokens per second.

    For an acceptance rate a, the speed is (1 + a + … + aᵏ) / (1 + cost × k). `cost` is the cost of
    a draft token, as a fraction of a pass (Leviathan et al. 2023, section 3.3). Returns 0 if the
    speedup is small, because rate and cost are estimates.
    """
    k = np.arange(MAX_DRAFT + 1)
    speeds = np.cumsum(acceptance_rate**k) / (1 + cost * k)
    best = int(np.argmax(speeds))
    return best if speeds[best] > _MIN_SPEEDUP else 0


def propose_drafts(batch: Sequence[SpeculatedSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence, as many as should pay off and fit."""
    drafts: list[list[int]] = [[] for _ in batch]
    unfinished: list[_Drafting] = []
    for sequence, draft in zip(batch, drafts, strict=True):
        speculation = sequence.speculation
        if speculation is None:
            continue
        length = min(speculation.draft_length(len(batch)), sequence.tokens_left)
        if speculation.draft is None:
            draft += speculation.lookup.propose(sequence.prompt, sequence.ids, length)
            continue
        # Half of the draft model's context is reserved for the text before the draft.
        length = min(length, speculation.draft.model.config.n_positions // 2)
        if length > 0:
            speculation.draft.prepare(sequence.length, length, full_context=speculation.pays_off)
            unfinished.append(_Drafting(sequence, speculation.draft, length, draft))
    while unfinished:
        unfinished = _extend_drafts(unfinished)
    return drafts


class PromptLookup:
    """Proposes the tokens that followed the last earlier occurrence of the text's final n-gram."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}  # n-gram → index after its last occurrence

    def propose(self, prompt: Sequence[int], ids: Sequence[int], length: int) -> list[int]:
        """Return `length` draft tokens; none if the final n-gram has not occurred before."""
        new = ids[len(self._ids) - len(prompt) :] if self._ids else [*prompt, *ids]
        for token_id in new:
            end = len(self._ids)
            for n in _NGRAM_SIZES:
                if end >= n:
                    self._index[tuple(self._ids[end - n :])] = end
            self._ids.append(token_id)
        for n in _NGRAM_SIZES:
            start = self._index.get(tuple(self._ids[-n:]))
            if start is not None and length > 0:
                draft = self._ids[start : start + length]
                while len(draft) < length:  # past the end of the text, repeat the draft
                    draft.append(draft[len(draft) - (len(self._ids) - start)])
                return draft
        return []


class DraftModel:
    """The KV cache and the context of a draft model for one sequence.

    The draft model's context may start later than the target model's.
    """

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.cache = model.new_cache()
        self.start = 0  # index, in prompt + ids, of the first id in the context
        self._has_full_context = False

    def prepare(self, length: int, draft_length: int, full_context: bool) -> None:
        """Drop rejected draft tokens; shorten the context if the next draft does not fit.

        The next draft has `draft_length` tokens and follows `length` ids. If `full_context` is
        False, the draft model reads only the last few ids, to save time on an unlikely draft.
        """
        n_positions = self.model.config.n_positions
        self.cache.truncate(min(self.cache.length, max(0, length - 1 - self.start)))
        n_pending = length - self.start - self.cache.length
        if full_context and not self._has_full_context:
            self._restart(length - (n_positions - draft_length))
            self._has_full_context = True
        elif not full_context and n_pending > _SHORT_CONTEXT:
            self._restart(length - min(_SHORT_CONTEXT, n_positions - draft_length))
            self._has_full_context = False
        if length - self.start + draft_length > n_positions:
            self._restart(length - n_positions // 2)

    def _restart(self, start: int) -> None:
        self.start = max(0, start)
        self.cache.truncate(0)


@dataclass
class _Drafting:
    """A draft that the draft model is extending to `length` tokens."""

    sequence: SpeculatedSequence
    source: DraftModel
    length: int
    draft: list[int]

    def pending_ids(self) -> list[int]:
        """Return the token ids that are not yet in the draft model's KV cache."""
        ids = [*self.sequence.prompt, *self.sequence.ids, *self.draft]
        return ids[self.source.start + self.source.cache.length :]


def _extend_drafts(unfinished: Sequence[_Drafting]) -> list[_Drafting]:
    """Extend by one token each draft that uses the first draft's model. Returns unfinished drafts.

    Drafts of other models are returned unchanged. A draft ends at a token id for which the draft
    model has no embedding.
    """
    model = unfinished[0].source.model
    known_ids = range(model.config.vocab_size)
    remaining = [drafting for drafting in unfinished if drafting.source.model is not model]
    batch = [
        drafting
        for drafting in unfinished
        if drafting.source.model is model and max(drafting.pending_ids()) in known_ids
    ]
    if not batch:
        return remaining
    inputs = [drafting.pending_ids() for drafting in batch]
    caches = [drafting.source.cache for drafting in batch]
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged draft model gives no draft
        logits = model.forward(inputs, caches, logits_indices=last_token_indices(inputs))
    for drafting, row in zip(batch, logits, strict=True):
        token_id = _draft_id(drafting.sequence, drafting.draft, row)
        if token_id is not None:
            drafting.draft.append(token_id)
            if len(drafting.draft) < drafting.length:
                remaining.append(drafting)
    return remaining


def _draft_id(sequence: SpeculatedSequence, draft: Sequence[int], logits: Array) -> int | None:
    """Select the next draft token from the draft model's logits; None if no token is possible.

    The selection uses the random number that the sequence will use at this position. So draft model
    and target model select the same token if their distributions are similar.
    """
    # Options refer to ids of the target model; the draft model may have more or fewer ids.
    logits = logits[: sequence.vocab_size]
    if n_missing := sequence.vocab_size - len(logits):
        logits = np.concatenate([logits, np.full(n_missing, -np.inf, logits.dtype)])
    if not np.isfinite(logits.max()):
        return None
    constraint = sequence.constraint
    try:
        for token_id in draft if constraint else ():
            constraint = constraint.advance(token_id) if constraint else None
        logits = process_logits(
            logits,
            sequence.options,
            sequence.prompt,
            [*sequence.ids, *draft],
            sequence.eos_token_ids,
            constraint,
        )
    except InvalidArgumentError:
        return None
    return next_id(logits, sequence.options, sequence.rng.lookahead(len(draft)))
