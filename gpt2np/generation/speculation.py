"""Speculative decoding: several tokens per forward pass, with the same result as without.

The target model computes logits for the draft tokens in one pass. At each position the sequence
selects a token from these logits, with the random number that it uses without drafts. A draft token
is accepted while it equals the selected token. This is the verification of Leviathan et al. 2023
for a deterministic draft. Draft tokens come from earlier text of the sequence (prompt lookup,
Saxena 2023) or from a smaller draft model.
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
_ROW_COST = 0.1  # cost of one more token in a pass, as a fraction of a pass; measured with 8 tokens
_MIN_SPEEDUP = 1.1  # minimum speed with drafts, relative to no drafts
_DECAY = 0.85  # weight of earlier drafts in the acceptance rate, after each further draft
_NGRAM_SIZES = (3, 2)  # of prompt lookup
_SHORT_CONTEXT = 8  # ids that a draft model computes while its drafts do not pay off


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
    """The source of one sequence's draft tokens; also decides how many draft tokens to propose.

    The recent acceptance rate and the cost of a draft token determine the best draft length. If no
    length pays off, one draft token is tried now and then; each wrong one lengthens the pause.
    """

    def __init__(self, model: GPT2, draft: GPT2 | None) -> None:
        """Set the target model and the draft model; `draft=None` selects prompt lookup."""
        self.draft = None if draft is None else DraftModel(draft)
        self.lookup = PromptLookup()
        self._cost = draft.weights.parameters / model.weights.parameters if draft else 0.0
        self._n_accepted, self._n_tried = 1.2, 2.0  # decaying sums that start from a prior
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
    a draft token, as a fraction of a pass (Leviathan et al. 2023, section 3.3). If the speedup is
    small, returns 0, because rate and cost are estimates.
    """
    k = np.arange(MAX_DRAFT + 1)
    speeds = np.cumsum(acceptance_rate**k) / (1 + cost * k)
    best = int(np.argmax(speeds))
    return best if speeds[best] > _MIN_SPEEDUP else 0


def propose_drafts(batch: Sequence[SpeculatedSequence]) -> list[list[int]]:
    """Propose draft tokens for each sequence: the number that should pay off, if they fit."""
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
        # The other half of the draft model's context precedes the draft.
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
                while len(draft) < length:  # beyond the end of the text, copy the draft itself
                    draft.append(draft[len(draft) - (len(self._ids) - start)])
                return draft
        return []


class DraftModel:
    """The draft model's state for one sequence: a KV cache and the start of its context.

    The draft model's context may start later than the target model's.
    """

    def __init__(self, model: GPT2) -> None:
        self.model = model
        self.cache = model.new_cache()
        self.start = 0  # index of the first id in the context, counted from the prompt's first
        self._has_full_context = False

    def prepare(self, length: int, draft_length: int, full_context: bool) -> None:
        """Drop rejected draft tokens; make room for `draft_length` tokens after `length` ids.

        Without `full_context`, the draft model reads only the last few ids; this is for drafts that
        are unlikely to pay off.
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
    """Extend the drafts of the first draft model by one token each; return the unfinished drafts.

    Drafts of other draft models are returned unchanged. A draft ends at a token id that its draft
    model has no embedding for.
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
    """Select the next draft token from the draft model's logits; None if they allow no token.

    The random number is the one that the sequence will use at this position. So draft model and
    target model select the same token if their distributions are similar.
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
