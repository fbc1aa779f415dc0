"""Starts of prompts that several sequences share: their keys and values are computed once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from operator import itemgetter

from gpt2np.generation.sequence import RunningSequence
from gpt2np.kernels.array import common_length
from gpt2np.model import KVCache

_MIN_SHARED = 16  # tokens; copying fewer keys and values saves no time


def copy_shared_prefix(sequence: RunningSequence, running: Iterable[RunningSequence]) -> bool:
    """Copy the keys and values with which a new prompt begins, if they are known.

    They come from the request's prefix, or from the sequence before this one in `running` that
    shares the most tokens. Returns False if that sequence will still compute more of these tokens:
    then the new sequence should wait.
    """
    if sequence.cache.length or sequence.n_pending == 1 or not _is_shareable(sequence):
        return True
    request = sequence.request
    ids, top = request.ids[:-1], request.options.prompt_logprobs
    earlier = takewhile(lambda other: other is not sequence, running)
    donors = [
        (common_length(ids, other.request.ids), other)
        for other in earlier
        if _is_shareable(other) and top in (None, other.request.options.prompt_logprobs)
    ]
    n_shared, donor = max(donors, key=itemgetter(0), default=(0, sequence))
    prefix = request.prefix if top is None else None
    if prefix and (n := min(len(prefix.ids), len(ids))) >= n_shared:
        sequence.cache = _first_tokens(prefix.cache, n)
    elif n_shared >= _MIN_SHARED:
        if donor.cache.length < n_shared:
            return False
        if top is not None:  # the last shared token predicts another one in the other prompt
            n_shared -= 1
            sequence.prompt_logprobs = donor.prompt_logprobs[:n_shared]
        sequence.cache = _first_tokens(donor.cache, n_shared)
    return True


def _is_shareable(sequence: RunningSequence) -> bool:
    """Return whether keys and values depend on the prompt alone, at positions from 0."""
    return not (sequence.request.callbacks.interventions or sequence.context_start)


def _first_tokens(cache: KVCache, n: int) -> KVCache:
    copy = cache.copy()
    copy.truncate(n)
    return copy
