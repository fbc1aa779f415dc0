"""Functions from logits to logits that look at the text so far: (V,) → (V,), their input unchanged.

They follow `transformers`' logits processors, in whose order `penalized` applies them, and OpenAI's
API for the presence and frequency penalties, which come after the repetition penalty.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import GenerationOptions

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint

Array = NDArray[Any]


def penalized(
    logits: Array,
    options: GenerationOptions,
    prompt: Sequence[int],
    generated: Sequence[int],
    eos_token_ids: Collection[int],
    constraint: Constraint | None = None,
) -> Array:
    """The logits after every bias, penalty and ban that `options` ask for, and the constraint.

    `bad_words` must be ids. The same array, if they ask for none.

    Raises:
        InvalidArgumentError: all ids are ruled out.
    """
    before = logits
    if options.logit_bias:
        logits = add_logit_bias(logits, options.logit_bias)
    if options.repetition_penalty != 1:
        logits = repetition_penalty(logits, [*prompt, *generated], options.repetition_penalty)
    if options.presence_penalty or options.frequency_penalty:
        presence, frequency = options.presence_penalty, options.frequency_penalty
        logits = presence_and_frequency_penalty(logits, generated, presence, frequency)
    if options.no_repeat_ngram_size:
        logits = no_repeat_ngram(logits, [*prompt, *generated], options.no_repeat_ngram_size)
    if options.bad_words:
        words = [word for word in options.bad_words if not isinstance(word, str)]
        logits = ban_words(logits, [*prompt, *generated], words)
    if options.ignore_eos or len(generated) < options.min_new_tokens:
        logits = ban(logits, eos_token_ids)
    if constraint:
        logits = np.where(constraint.allowed(), logits, -math.inf)
    if logits is not before and not np.isfinite(logits.max()):
        raise InvalidArgumentError(
            f"after {len(generated)} tokens every token is ruled out; loosen what bans tokens: "
            f"bad_words, no_repeat_ngram_size, min_new_tokens, ignore_eos, choices, regex"
        )
    return logits


def add_logit_bias(logits: Array, bias: Collection[tuple[int, float]]) -> Array:
    """Each id's bias added to its logit; OpenAI's `logit_bias`, transformers' `sequence_bias`."""
    biased = logits.copy()
    for token_id, value in bias:
        biased[token_id] += value
    return biased


def repetition_penalty(logits: Array, ids: Sequence[int], penalty: float) -> Array:
    """Make the ids that occur in `ids` less likely for a penalty above 1 (Keskar et al. 2019)."""
    seen = np.unique(np.asarray(ids, np.int64))
    chosen = logits[seen]
    result = logits.copy()
    result[seen] = np.where(chosen < 0, chosen * penalty, chosen / penalty)
    return result


def presence_and_frequency_penalty(
    logits: Array, generated: Sequence[int], presence: float, frequency: float
) -> Array:
    """Logit − presence − frequency × count, of the ids that occur in `generated` (OpenAI's API)."""
    seen, counts = np.unique(np.asarray(generated, np.int64), return_counts=True)
    result = logits.copy()
    result[seen] -= (presence + frequency * counts).astype(logits.dtype)
    return result


def no_repeat_ngram(logits: Array, ids: Sequence[int], size: int) -> Array:
    """Rule out what would complete a second run of `size` ids (Paulus et al. 2017)."""
    if len(ids) < size:
        return logits
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(ids, np.int64), size)
    begun = runs[:, :-1] == np.asarray(ids[len(ids) + 1 - size :], np.int64)
    return ban(logits, runs[begun.all(-1), -1].tolist())


def ban_words(logits: Array, ids: Sequence[int], words: Collection[Sequence[int]]) -> Array:
    """Rule out the last id of every word whose others `ids` end with."""
    last = [word[-1] for word in words if _ends_with(ids, word[:-1])]
    return ban(logits, last)


def ban(logits: Array, ids: Collection[int]) -> Array:
    """Rule out some ids; those beyond the logits, as an end of text without a row, can't come."""
    banned = logits.copy()
    banned[[token_id for token_id in ids if token_id < len(logits)]] = -math.inf
    return banned


def _ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    return len(end) <= len(ids) and list(ids[len(ids) - len(end) :]) == list(end)
