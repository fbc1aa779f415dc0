"""Validation of the arguments of `GPT2.forward`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import ContextLengthError, InvalidArgumentError, check_argument, is_integer
from gpt2np.kernels.array import Array, IntArray
from gpt2np.runtime.kv_cache import KVCache


def check_sequences(sequences: Sequence[ArrayLike], vocab_size: int) -> list[IntArray]:
    """Check lists of token ids, and return each list as an integer array (n,)."""
    is_iterable = isinstance(sequences, Iterable)
    check_argument(is_iterable, "sequences", sequences, "a list of lists, as in [[5, 6, 7]]")
    arrays = [_integers(ids, "each sequence, as in [[5, 6, 7]],") for ids in sequences]
    if not arrays:
        raise InvalidArgumentError("no sequences; give at least one, as in [[5, 6, 7]]")
    for ids in arrays:
        if not ids.size:
            raise InvalidArgumentError("a sequence has no ids; it needs at least one")
        if np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= vocab_size:
            invalid = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise InvalidArgumentError(
                f"id {invalid} is not in the model's vocabulary of {vocab_size}"
            )
    return [ids.astype(np.int64) for ids in arrays]


def check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise InvalidArgumentError if an id of the argument `name` is not in the vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidArgumentError(
                f"{name}: id {token_id} is not in the model's vocabulary of {vocab_size}",
                param=name,
            )


def check_caches(
    caches: Sequence[KVCache], sequences: Sequence[IntArray], config: GPT2Config, weights: object
) -> None:
    """Check that each sequence has its own KV cache, and that its new ids fit the context."""
    is_list = isinstance(caches, Sequence) and all(isinstance(c, KVCache) for c in caches)
    check_argument(is_list, "caches", caches, "a list, one KVCache per sequence, as in [cache]")
    if not len(sequences) == len(caches) == len(set(caches)):
        raise InvalidArgumentError(f"{len(sequences)} sequences need as many caches, all different")
    if not all(cache.is_from(weights) for cache in caches):
        raise InvalidArgumentError("a cache is another model's; make it by model.new_cache()")
    for ids, cache in zip(sequences, caches, strict=True):
        if cache.length + ids.size > config.n_positions:
            raise ContextLengthError(
                f"{cache.length + ids.size} tokens exceed the model's context of "
                f"{config.n_positions}"
            )


def check_prompt_length(n_tokens: int, config: GPT2Config) -> None:
    """Raise ContextLengthError if a prompt has more tokens than the model's context."""
    if n_tokens > config.n_positions:
        raise ContextLengthError(
            f"the prompt has {n_tokens:,} tokens, and this model's maximum context length is "
            f"{config.n_positions} tokens; shorten it to at most {config.n_positions} tokens"
        )


def check_logits_indices(logits_indices: ArrayLike | None, n: int) -> IntArray:
    """Validate and return the indices (R,) of the tokens whose logits are requested.

    The pass has `n` new tokens. None requests the logits of all `n` tokens.
    """
    if logits_indices is None:
        return np.arange(n)
    indices = _integers(logits_indices, "logits_indices")
    if indices.size and not 0 <= np.minimum.reduce(indices) <= np.maximum.reduce(indices) < n:
        raise InvalidArgumentError(
            f"logits_indices must be among the {n} tokens of all sequences, 0 … {n - 1}"
        )
    return indices.astype(np.int64)


def last_token_indices(sequences: Sequence[Sequence[int] | Array]) -> IntArray:
    """Return the index of each sequence's last token, counted over all sequences.

    Sequences of 3, 1 and 2 tokens give [2, 3, 5].
    """
    return np.cumsum([len(ids) for ids in sequences], dtype=np.int64) - 1


def _integers(values: ArrayLike, name: str) -> IntArray:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    is_valid = not array.size or array.dtype.kind in "iu"
    if array.ndim == 1 and array.dtype.kind in "fO":  # perhaps integers beyond 64 bits
        array = np.asarray(values, object)
        is_valid = all(map(is_integer, array))
    if array.ndim != 1 or not is_valid:
        raise InvalidArgumentError(f"{name} must be a list of integers")
    return array
