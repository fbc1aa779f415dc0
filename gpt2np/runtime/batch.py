"""What one pass works on: new tokens of some sequences, and what they have seen before.

Shape letters: S sequences, N packed tokens, n tokens of one sequence, R rows asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.kernels.matmul import least_rows
from gpt2np.runtime.kv_cache import KVCache, NewTokens, make_room, new_tokens
from gpt2np.runtime.query_blocks import QUERIES, Group, query_groups
from gpt2np.runtime.ranks import Alone

Array = NDArray[Any]
Hook = Callable[[str, Array], Array]
"""Called as hook(name, array) at every named point; what it returns, an array of the same shape,
takes the array's place. If it has a method `for_layers(n_layer)`, this is asked before the pass for
the hook of a model with so many blocks."""

_FEWEST = 8  # tokens that it pays to give a thread in attention, or a process
MOST_TOKENS = 512  # of one pass, so that a prompt of any length takes bounded memory


@dataclass(frozen=True)
class Step:
    """The new tokens of a pass, of which this process may have some: its own.

    Attributes:
        ids: of its own ones, (N,). A single one, its position and rows may stand there twice, as
            two rows are the fewest of a small product.
        positions: of each in its sequence, (N,).
        all_tokens: which of the tokens of all processes are each sequence's.
        caches: one a sequence, with room for the new tokens.
        new: where the keys and values of its own ones are kept.
        groups: the blocks of its own queries that attention takes at once.
        rows: (R,), those of the N tokens that logits are asked for.
        asked: which of the rows that the caller asked for these are, or their first half if they
            stand there twice.
        hook: None if nobody looks inside.
        member: this process, alone or one of several.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    all_tokens: list[slice]
    caches: list[KVCache]
    new: list[NewTokens]
    groups: list[Group]
    rows: NDArray[np.int64]
    asked: NDArray[np.bool_]
    hook: Hook | None
    member: Alone

    def at(self, name: str, array: Array) -> Array:
        """The array, or what the hook makes of it."""
        return array if self.hook is None else self.hook(name, array)

    def show(self, name: str, part: Array) -> None:
        """The same for a part of an array, which takes what the hook makes of it."""
        if self.hook is not None:
            part[...] = self.hook(name, part.copy())


def steps(
    sequences: Sequence[NDArray[np.int64]],
    caches: Sequence[KVCache],
    rows: NDArray[np.int64],
    hook: Hook | None,
    member: Alone,
) -> Iterator[Step]:
    """The passes that the new ids of the sequences take: one, or several of MOST_TOKENS each.

    Each must be done before the next is asked for. With a hook all is done in one.
    """
    make_room(caches, list(map(len, sequences)))
    total = sum(map(len, sequences))
    most = total if hook else MOST_TOKENS
    for first in range(0, total, most):
        parts, start = [], 0
        for ids, cache in zip(sequences, caches, strict=True):
            part = ids[max(0, first - start) : max(0, first + most - start)]
            start += len(ids)
            if len(part):
                parts.append((part, cache))
        asked = (first <= rows) & (rows < first + most)
        yield _step(parts, rows[asked] - first, asked, hook, member)


def _step(
    parts: list[tuple[NDArray[np.int64], KVCache]],
    rows: NDArray[np.int64],
    asked: NDArray[np.bool_],
    hook: Hook | None,
    member: Alone,
) -> Step:
    lengths, caches = [len(ids) for ids, _ in parts], [cache for _, cache in parts]
    stops = np.cumsum(lengths).tolist()
    before = [cache.length for cache in caches]
    ids = np.concatenate([ids for ids, _ in parts])
    positions = np.concatenate([np.arange(n) + b for n, b in zip(lengths, before, strict=True)])
    beside = [False, *(b.lies_behind(a) for a, b in pairwise(caches))]
    most = _queries(len(ids), member.queries_among)
    groups = query_groups(
        lengths, before, caches[0].dtype, most, beside=beside, whole=hook is not None
    )
    tokens = [slice(stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]
    new = new_tokens(caches, tokens)
    own = member.own(groups)
    step = Step(ids, positions, tokens, caches, new, own, rows, asked, hook, member)
    step = step if member.has_all_tokens else _own(step)
    return _doubled(step) if len(step.ids) < least_rows() and hook is None else step


def _own(step: Step) -> Step:
    """Of a step of all tokens what there is to do for a process that has some of the groups."""
    groups = step.groups
    own = np.concatenate([[], *(np.r_[group.tokens] for group in groups)]).astype(np.int64)
    stops = np.cumsum([group.tokens.stop - group.tokens.start for group in groups]).tolist()
    packed = map(slice, [0, *stops], stops)
    asked, is_own = step.asked.copy(), np.isin(step.rows, own)
    asked[asked] = is_own
    return replace(
        step,
        ids=step.ids[own],
        positions=step.positions[own],
        new=[new.among(own) for new in step.new],
        groups=[replace(group, tokens=some) for group, some in zip(groups, packed, strict=True)],
        rows=np.searchsorted(own, step.rows[is_own]),
        asked=asked,
    )


def _doubled(step: Step) -> Step:
    """A step of a single token, or none, with two equal ones."""
    ids, positions, rows = (np.repeat(a, 2) for a in (step.ids, step.positions, step.rows))
    groups = [replace(group, times=1, tokens=slice(0, 2)) for group in step.groups]
    return replace(step, ids=ids, positions=positions, rows=rows, groups=groups)


def _queries(tokens: int, among: int) -> int:
    """Of a group at most, so that those who share them get about as many each."""
    times = -(-tokens // (among * QUERIES))
    return max(_FEWEST, -(-tokens // (among * times)))


@contextmanager
def undone_on_failure(caches: Sequence[KVCache]) -> Iterator[None]:
    """Caches that have grown are cut back if anything fails."""
    lengths = [cache.length for cache in caches]
    try:
        yield
    except BaseException:
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)
        raise


def checked_sequences(sequences: Sequence[ArrayLike], vocab_size: int) -> list[NDArray[np.int64]]:
    """The ids of each sequence, (n,), none of them empty or with impossible ids."""
    new = [_whole_numbers(ids, "each sequence, as in [[5, 6, 7]],") for ids in sequences]
    if not new:
        raise InvalidArgumentError("no sequences; give at least one, as in [[5, 6, 7]]")
    for ids in new:
        if len(ids) == 0:
            raise InvalidArgumentError("a sequence has no ids; it needs at least one")
        if ids.min() < 0 or ids.max() >= vocab_size:
            wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise InvalidArgumentError(
                f"id {wrong} is not in the model's vocabulary of {vocab_size}"
            )
    return new


def checked_caches(
    caches: Sequence[KVCache],
    new: Sequence[NDArray[np.int64]],
    config: GPT2Config,
    dtype: np.dtype[Any],
) -> Sequence[KVCache]:
    """The caches, if there is one for each sequence and the new ids fit in."""
    if isinstance(caches, KVCache):
        raise InvalidArgumentError("caches must be a list, one a sequence, as in [cache]")
    if any(cache.dtype != dtype for cache in caches):
        raise InvalidArgumentError(f"caches must be {dtype}, as the model is: model.new_cache()")
    if not len(new) == len(caches) == len({id(cache) for cache in caches}):
        raise InvalidArgumentError(f"{len(new)} sequences need as many caches, all different")
    for ids, cache in zip(new, caches, strict=True):
        if cache.length + len(ids) > config.n_positions:
            raise ContextLengthError(
                f"{cache.length + len(ids)} tokens are more than the model's context of "
                f"{config.n_positions}"
            )
    return caches


def checked_logits_indices(rows: ArrayLike | None, n: int) -> NDArray[np.int64]:
    """The rows asked for, (R,); all n without a choice."""
    if rows is None:
        return np.arange(n)
    chosen = _whole_numbers(rows, "logits_indices")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < n:
        raise InvalidArgumentError(
            f"logits_indices must be among the {n} packed tokens, 0 … {n - 1}"
        )
    return chosen


def hook_for(hook: Hook, n_layer: int) -> Hook:
    """What `hook` is in a model with so many blocks: itself, or what its `for_layers` says."""
    for_layers: Callable[[int], Hook] | None = getattr(hook, "for_layers", None)
    return for_layers(n_layer) if for_layers else hook


def checked_hook(hook: Hook, n_layer: int) -> Hook:
    """`hook` in such a model, with what it returns held to the array's shape and dtype."""
    hook = hook_for(hook, n_layer)

    def checked(name: str, array: Array) -> Array:
        result = hook(name, array)
        if result is None or np.shape(result) != array.shape:
            found = "None" if result is None else f"the shape {np.shape(result)}"
            raise InvalidArgumentError(
                f"the hook returned {found} at {name}, where it must be {array.shape}"
            )
        return np.asarray(result, array.dtype)

    return checked


def last_token_indices(sequences: Sequence[Sequence[int] | Array]) -> NDArray[np.int64]:
    """The packed row of each sequence's last token: lengths 3, 1, 2 → [2, 3, 5]."""
    return np.cumsum([len(ids) for ids in sequences], dtype=np.int64) - 1


def _whole_numbers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"{name} must be a list of whole numbers")
    return array.astype(np.int64)
