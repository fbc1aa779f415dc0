"""Logits processors: functions from logits to logits. A forbidden token gets the logit -inf.

The processors and their order are those of `transformers`:

- `process_logits`: bias, repetition penalty, presence and frequency penalties (from OpenAI's API),
  bans, constraint
- `filter_logits`: temperature, top-k, top-p, min-p, typical; these depend on the logits alone

No processor modifies its input array.

Shape letters: V vocabulary, R rows of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.generation.options import FILTERS, GenerationOptions
from gpt2np.kernels import exact
from gpt2np.kernels.array import Array, BoolArray, IntArray
from gpt2np.model import GPT2, KVCache
from gpt2np.model.ops import exp_and_row_sums, softmax


def compute_logits(
    model: GPT2,
    sequences: Sequence[Sequence[int]],
    caches: Sequence[KVCache],
    logits_indices: ArrayLike | None = None,
) -> Array:
    """Run `GPT2.forward` and check that the logits are finite. Returns (R, V)."""
    with np.errstate(all="ignore"):  # check_finite raises an error instead
        logits = model.forward(sequences, caches, logits_indices=logits_indices)
    check_finite(logits, model)
    return logits


def check_finite(logits: Array, model: GPT2) -> None:
    """Raise CheckpointError if a row of logits (R, V) has an infinite maximum, or NaN."""
    if not np.isfinite(np.maximum.reduce(logits, axis=-1)).all():
        raise logits_error(model)


def logits_error(model: GPT2) -> CheckpointError:
    """Return the error for NaN or infinite logits; the message names weights that aren't finite."""
    damaged = [name for name, array in model.weights.items() if not np.isfinite(array).all()]
    if damaged:
        more = f" and {len(damaged) - 3} more tensors" if len(damaged) > 3 else ""
        cause = f"NaN or infinite numbers are stored in {', '.join(damaged[:3])}{more}"
    else:
        cause = f"they overflow {model.dtype}; the weights or the config are damaged"
    return CheckpointError(f"the model's logits are not numbers: {cause}")


_FORBIDDING = [
    *("bad_words", "no_repeat_ngram_size", "min_new_tokens", "ignore_eos"),
    *("choices", "regex", "json_schema"),
]


def repeated_ngram_ids(ids: Sequence[int], n: int) -> list[int]:
    """Return the ids that have followed the last `n` of `ids` before."""
    array = np.asarray(ids, np.int64)
    if len(array) <= n:
        return []
    is_start = np.ones(len(array) - n, bool)
    for i in range(n):
        is_start &= array[i : len(array) - n + i] == array[len(array) - n + i]
    following: list[int] = array[n:][is_start].tolist()
    return following


@np.errstate(all="ignore")  # the maximum is checked at the end
def process_logits(
    logits: Array,
    options: GenerationOptions,
    prompt: Sequence[int],
    generated: Sequence[int],
    eos_token_ids: Collection[int],
    allowed: BoolArray | None = None,
) -> Array:
    """Apply bias, penalties and bans of `options`, then a constraint's mask, to logits (V,).

    `prompt` and `generated` are the token ids so far; `allowed` is (V,). Returns the input array
    itself if there is nothing to apply. `options.bad_words` is not read: the request already has
    the banned texts in `bad_words_ids`, as ids.

    Raises:
        InvalidArgumentError: options and constraint forbid every next token.
    """
    unprocessed = logits
    if options.logit_bias:
        logits = add_logit_bias(logits, options.logit_bias)
    if options.repetition_penalty != 1:
        used = np.unique([*prompt, *generated])
        logits = repetition_penalty(logits, used, options.repetition_penalty)
    presence, frequency = options.presence_penalty, options.frequency_penalty
    if presence or frequency:
        counts = np.bincount(np.array(generated, np.int64), minlength=len(logits))
        logits = presence_and_frequency_penalty(logits, counts, presence, frequency)
    if options.no_repeat_ngram_size:
        repeated = repeated_ngram_ids([*prompt, *generated], options.no_repeat_ngram_size - 1)
        logits = ban(logits, repeated)
    if options.bad_words_ids:
        logits = ban_words(logits, [*prompt, *generated], options.bad_words_ids)
    is_short = len(generated) < options.min_new_tokens
    if options.ignore_eos or is_short:
        logits = ban(logits, eos_token_ids)
    if is_short and options.stop_token_ids:
        logits = ban(logits, options.stop_token_ids)
    if allowed is not None:
        logits = apply_mask(logits, allowed)
    if logits is not unprocessed and not math.isfinite(logits.max()):
        raise InvalidArgumentError(
            f"after {len(generated)} tokens every token is ruled out; loosen what bans "
            "tokens: bad_words, no_repeat_ngram_size, min_new_tokens, ignore_eos, the constraint "
            "(choices, regex, json_schema)",
            param=next((name for name in _FORBIDDING if getattr(options, name)), None),
        )
    return logits


def add_logit_bias(logits: Array, bias: Collection[tuple[int, float]]) -> Array:
    """Add a bias to the logits (V,) of the given token ids, like OpenAI's `logit_bias`."""
    ids, values = zip(*bias, strict=True)
    biased = logits.copy()
    np.add.at(biased, list(ids), np.array(values, logits.dtype))
    return biased


def repetition_penalty(logits: Array, ids: IntArray, penalty: float) -> Array:
    """Divide positive and multiply negative logits of the tokens in `ids` by `penalty`.

    A penalty above 1 makes these tokens less likely (Keskar et al. 2019).
    """
    repeated = logits[ids]
    result = logits.copy()
    result[ids] = np.where(repeated < 0, repeated * penalty, repeated / penalty)
    return result


def presence_and_frequency_penalty(
    logits: Array, counts: IntArray, presence: float, frequency: float
) -> Array:
    """Subtract presence + frequency × count from the logits (V,) whose count (V,) is not 0."""
    generated = np.flatnonzero(counts)
    result = logits.copy()
    result[generated] -= (presence + frequency * counts[generated]).astype(logits.dtype)
    return result


def ban_words(logits: Array, ids: Sequence[int], words: Collection[Sequence[int]]) -> Array:
    """Forbid each id after `ids` that would complete one of `words`, which are lists of ids."""
    tail = ids[-max(map(len, words)) :]
    starts = {n: tuple(tail[len(tail) - n :]) for n in range(len(tail) + 1)}
    return ban(logits, [last for *start, last in words if starts.get(len(start)) == tuple(start)])


def apply_mask(logits: Array, allowed: BoolArray) -> Array:
    """Set the logits (V,) of the tokens that a constraint forbids to -inf."""
    allowed = np.asarray(allowed)
    if allowed.shape != logits.shape or allowed.dtype != bool:
        raise InvalidArgumentError(
            f"allowed() of the constraint returned an array {allowed.shape} of {allowed.dtype}; it "
            f"must return {logits.shape} of bool"
        )
    return np.where(allowed, logits, -math.inf)


def ban(logits: Array, ids: Collection[int]) -> Array:
    """Set the logits (V,) of token ids to -inf. Ids ≥ V are ignored."""
    banned = logits.copy()
    banned[[token_id for token_id in ids if token_id < len(logits)]] = -math.inf
    return banned


@np.errstate(over="ignore", under="ignore")
def apply_temperature(logits: Array, temperature: float) -> Array:
    """Divide logits (…, V) by a temperature, which must be above 0.

    The function first subtracts the maximum of each row. This changes no probability, and prevents
    overflow at tiny temperatures.
    """
    shifted = (logits - logits.max(-1, keepdims=True)).astype(np.float64)
    scaled: Array = (shifted / temperature).astype(logits.dtype)
    return scaled


def top_k_filter(logits: Array, k: int) -> Array:
    """Keep the k highest logits of each row (…, V), and all ties with the k-th highest."""
    if k >= logits.shape[-1]:
        return logits
    kth = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits < kth, -math.inf, logits)


@np.errstate(under="ignore")
def top_p_filter(logits: Array, p: float) -> Array:
    """Keep the smallest set of most likely tokens whose total probability is at least p.

    This is nucleus sampling (Holtzman et al. 2020). The token with which the total reaches p is
    kept, so at least one token remains. Of equal logits at the cut-off, higher ids are kept; in
    `transformers` the choice depends on the device, because torch.sort is not stable. Cumulative
    sums are rounded to the logits' dtype, as by torch.cumsum.
    """
    order = np.argsort(logits, axis=-1, kind="stable")  # ascending
    probabilities = softmax(np.take_along_axis(logits, order, -1))
    cumulative = np.cumsum(probabilities, axis=-1, dtype=np.float64).astype(logits.dtype)
    removed_sorted = cumulative <= 1 - p
    removed_sorted[..., -1] = False
    removed = np.empty_like(removed_sorted)
    np.put_along_axis(removed, order, removed_sorted, -1)
    return np.where(removed, -math.inf, logits)


@np.errstate(under="ignore")
def min_p_filter(logits: Array, p: float) -> Array:
    """Keep the tokens that are at least p times as likely as the most likely token.

    This is min-p sampling (Nguyen et al. 2024).
    """
    probabilities = softmax(logits)
    threshold = probabilities.max(-1, keepdims=True) * p
    return np.where(probabilities < threshold.astype(logits.dtype), -math.inf, logits)


@np.errstate(under="ignore", invalid="ignore")  # 0 × -inf for forbidden tokens
def typical_filter(logits: Array, p: float) -> Array:
    """Keep tokens in the order of |surprisal - entropy| until their total probability reaches p.

    This is locally typical sampling (Meister et al. 2022). The token that reaches p is kept, and so
    are all ties with it.
    """
    exp, row_sums = exp_and_row_sums(logits.dtype)
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - exact.log(row_sums(exp(shifted))).astype(logits.dtype)
    entropy = -row_sums(np.nan_to_num(exp(log_p) * log_p))
    distance = np.abs(-log_p - entropy)
    order = np.argsort(distance, axis=-1, kind="stable")
    probabilities = softmax(np.take_along_axis(logits, order, -1))
    cumulative = np.cumsum(probabilities, -1, dtype=np.float64).astype(logits.dtype)
    last = np.minimum((cumulative < p).sum(-1, keepdims=True), logits.shape[-1] - 1)
    farthest = np.take_along_axis(distance, np.take_along_axis(order, last, -1), -1)
    return np.where(distance > farthest, -math.inf, logits)


_FUNCTIONS: dict[str, Callable[[Array, Any], Array]] = dict(
    zip(FILTERS, (top_k_filter, top_p_filter, min_p_filter, typical_filter), strict=True)
)
"""By option: the filter, which takes logits (…, V) after the temperature, and the value."""


def active_filters(options: GenerationOptions) -> list[str]:
    """Return the names of the filters that are not switched off."""
    return [name for name, neutral in FILTERS.items() if getattr(options, name) != neutral]


def filter_logits(logits: Array, options: GenerationOptions) -> Array:
    """Apply the temperature, then the active filters, to logits (…, V)."""
    logits = apply_temperature(logits, options.temperature)
    for name in active_filters(options):
        logits = _FUNCTIONS[name](logits, getattr(options, name))
    return logits
