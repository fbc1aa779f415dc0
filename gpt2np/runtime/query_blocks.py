"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2) of packed sequences.

Every sequence attends to its own keys and values only. Its queries are taken in blocks, so that the
part of the pattern that the causal mask hides is mostly never computed; short blocks, of different
sequences, too, share one softmax.

Shape letters: h some of the H heads, N packed tokens, Q queries of a group, S sequences of a block,
n queries of each, T tokens seen, in tiles, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.kernels.linear import added_up
from gpt2np.kernels.matmul import LANES, least_rows, product

Array = NDArray[Any]

QUERIES = 64  # of a group, where they are many
_SPREAD = 128  # tokens by which lengths in a block may differ; to be a block of its own costs more


@dataclass(frozen=True)
class Block:
    """Consecutive new tokens of one sequence, or equally many of several that lie side by side.

    Attributes:
        sequence: its number, or that of the first.
        count: of sequences.
        queries: their places in the group.
        seen: how many tokens the last of them sees, itself included, T; of the longest sequence.
    """

    sequence: int
    count: int
    queries: slice
    seen: int


@dataclass(frozen=True)
class Group:
    """Blocks of queries whose pattern is computed at once.

    Attributes:
        tokens: the packed tokens whose queries they are, one or several times each.
        times: how many times; two if a block is of one query, as two rows are the fewest of a small
            product.
        blocks: whose they are.
        all_see: how many tokens every query sees.
        hidden: (tokens, T - all_see), which of the others it must not see.
        ones: (T, LANES), to add up rows with.
    """

    tokens: slice
    times: int
    blocks: tuple[Block, ...]
    all_see: int
    hidden: NDArray[np.bool_]
    ones: Array

    @property
    def seen(self) -> int:
        """How many tokens the last query of the longest sequence sees, T."""
        return len(self.ones)


class _Part(NamedTuple):
    """Consecutive new tokens of one sequence, and how many the last of them sees."""

    sequence: int
    tokens: slice
    seen: int

    @property
    def n(self) -> int:
        return int(self.tokens.stop - self.tokens.start)


def query_groups(
    lengths: Sequence[int],
    before: Sequence[int],
    dtype: DTypeLike,
    most: int = QUERIES,
    *,
    beside: Sequence[bool] = (),
    whole: bool = False,
) -> list[Group]:
    """The groups of a pass: sequences of so many new tokens, which have seen so many before.

    A group has at most `most` tokens. `beside` says which sequences' keys and values lie right
    behind those of the sequence before. With `whole` each sequence is a group of its own, so that
    its pattern can be seen as a whole.
    """
    groups: list[list[_Part]] = []
    for part in _parts(lengths, before, max(lengths) if whole else most):
        if not groups or whole or part.tokens.stop - groups[-1][0].tokens.start > most:
            groups.append([])
        groups[-1].append(part)
    return [_group(parts, beside or [False] * len(lengths), dtype) for parts in groups]


def _parts(lengths: Sequence[int], before: Sequence[int], most: int) -> Iterator[_Part]:
    packed = 0
    for sequence, (n, cached) in enumerate(zip(lengths, before, strict=True)):
        for start in range(0, n, most):
            stop = min(start + most, n)
            yield _Part(sequence, slice(packed + start, packed + stop), cached + stop)
        packed += n


def _group(parts: Sequence[_Part], beside: Sequence[bool], dtype: DTypeLike) -> Group:
    times = 2 if min(part.n for part in parts) < least_rows() else 1
    runs: list[list[_Part]] = []
    for part in parts:
        if not runs or not _fits(part, runs[-1], beside):
            runs.append([])
        runs[-1].append(part)
    tokens = slice(parts[0].tokens.start, parts[-1].tokens.stop)
    most, sees = max(part.seen for part in parts), np.concatenate([_sees(part) for part in parts])
    return Group(
        tokens,
        times,
        tuple(_block(run, tokens.start, times) for run in runs),
        all_see=int(sees.min()),
        hidden=np.arange(sees.min(), most) >= sees[:, None],
        ones=np.ones((most, LANES), dtype),
    )


def _fits(part: _Part, run: Sequence[_Part], beside: Sequence[bool]) -> bool:
    """Whether a part can be in one block with those before it, and is about as long."""
    seen = [part.seen, *(other.seen for other in run)]
    follows = part.sequence == run[-1].sequence + 1 and beside[part.sequence]
    return follows and part.n == run[-1].n and max(seen) - min(seen) <= _SPREAD


def _block(run: Sequence[_Part], first: int, times: int) -> Block:
    start, stop = run[0].tokens.start - first, run[-1].tokens.stop - first
    most = max(part.seen for part in run)
    return Block(run[0].sequence, len(run), slice(start * times, stop * times), most)


def _sees(part: _Part) -> NDArray[np.int64]:
    return np.arange(part.seen - part.n, part.seen) + 1


def attention_pattern(query: Array, held: Sequence[tuple[Array, Array]], group: Group) -> Array:
    """Who looks at whom: the softmax of the scaled and causally masked scores, (h, Q, tiles·tile).

    query: (h, Q, D) of the group, scaled. held: of each block the keys, (tiles, S, h, D, tile), and
    the values, (tiles, S, h, tile, D).
    Hidden scores give exactly 0, as do all from T on. A row's bits don't depend on how many more
    tokens others see. Of queries that stand there several times only the first is done.
    """
    (heads, queries, _), tile = query.shape, held[0][0].shape[-1]
    scores = np.empty((heads, queries, -(-group.seen // tile), tile), query.dtype)
    for block, (keys, _) in zip(group.blocks, held, strict=True):
        into = scores[:, block.queries, : len(keys)]
        product(_apart(query[:, block.queries], block), keys, out=_apart(into, block))
    pattern = scores.reshape(heads, queries, -1)
    pattern[..., group.seen :] = 0
    rows = pattern[:, :: group.times, : group.seen]
    if group.hidden.size:
        np.copyto(rows[..., group.all_see :], -math.inf, where=group.hidden)
    rows -= np.maximum.reduce(rows, -1, keepdims=True)
    np.exp(rows, out=rows)
    rows /= product(rows, group.ones)[..., :1]
    return pattern


def mixed_values(pattern: Array, held: Sequence[tuple[Array, Array]], group: Group) -> Array:
    """The values that each block holds, mixed by the pattern (h, Q, tiles·tile) → (h, tokens, D).

    Tiles are mixed by themselves and added up in their order.
    """
    tile, size = held[0][1].shape[-2:]
    z = np.empty((*pattern.shape[:2], size), pattern.dtype)
    tiles = pattern.reshape(*pattern.shape[:2], -1, tile)
    for block, (_, values) in zip(group.blocks, held, strict=True):
        parts = product(_apart(tiles[:, block.queries, : len(values)], block), values)
        _apart(z[:, block.queries], block)[...] = added_up(parts)
    return z[:, :: group.times]


def _apart(array: Array, block: Block) -> Array:
    """A block's queries by sequence: (h, Q, D) → (S, h, n, D), (h, Q, tiles, m) → (tiles, S, …)."""
    heads, _, *more = array.shape
    each = array.reshape(heads, block.count, -1, *more)
    return each.swapaxes(0, 1) if len(more) == 1 else each.transpose(3, 1, 0, 2, 4)
