"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2) of packed sequences.

Every sequence attends to its own keys and values only. Its queries are taken in blocks, so that the
part of the pattern that the causal mask hides is mostly never computed; short blocks, of different
sequences, too, share one softmax.

Shape letters: h some of the H heads, N packed tokens, Q queries of a group, T tokens seen, D head
size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.model.product import LANES, least_rows, product

Array = NDArray[Any]

QUERIES = 64  # of a group, where they are many


@dataclass(frozen=True)
class Block:
    """Consecutive new tokens of one sequence.

    Attributes:
        sequence: its number.
        queries: their places in the group.
        seen: how many tokens the last of them sees, itself included, T.
    """

    sequence: int
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
        hidden: (tokens, T), what each query must not see; None if each sees all.
        ones: (T, LANES), to add up rows with.
    """

    tokens: slice
    times: int
    blocks: tuple[Block, ...]
    hidden: NDArray[np.bool_] | None
    ones: Array


def query_groups(
    lengths: Sequence[int],
    before: Sequence[int],
    dtype: DTypeLike,
    most: int = QUERIES,
    *,
    whole: bool = False,
) -> list[Group]:
    """The groups of a pass: sequences of so many new tokens, which have seen so many before.

    A group has at most `most` tokens. With `whole` each sequence is a group of its own, so that its
    pattern can be seen as a whole.
    """
    groups: list[list[tuple[int, slice, int]]] = []
    for sequence, tokens, seen in _blocks(lengths, before, max(lengths) if whole else most):
        if not groups or whole or tokens.stop - groups[-1][0][1].start > most:
            groups.append([])
        groups[-1].append((sequence, tokens, seen))
    return [_group(blocks, dtype) for blocks in groups]


def _blocks(
    lengths: Sequence[int], before: Sequence[int], most: int
) -> Iterator[tuple[int, slice, int]]:
    """Sequence, packed tokens, and how many tokens the last of them sees, of each block."""
    packed = 0
    for sequence, (n, cached) in enumerate(zip(lengths, before, strict=True)):
        for start in range(0, n, most):
            stop = min(start + most, n)
            yield sequence, slice(packed + start, packed + stop), cached + stop
        packed += n


def _group(parts: Sequence[tuple[int, slice, int]], dtype: DTypeLike) -> Group:
    first, most = parts[0][1].start, max(seen for _, _, seen in parts)
    times = 2 if min(t.stop - t.start for _, t, _ in parts) < least_rows() else 1
    blocks = []
    sees: list[int] = []
    for sequence, tokens, seen in parts:
        n = tokens.stop - tokens.start
        queries = slice((tokens.start - first) * times, (tokens.stop - first) * times)
        blocks.append(Block(sequence, queries, seen))
        sees += range(seen - n + 1, seen + 1)
    hidden = None if min(sees) == most else np.arange(most) >= np.array(sees)[:, None]
    return Group(
        slice(first, parts[-1][1].stop), times, tuple(blocks), hidden, np.ones((most, LANES), dtype)
    )


def attention_pattern(query: Array, held: Sequence[tuple[Array, Array]], group: Group) -> Array:
    """Who looks at whom: the softmax of the scaled and causally masked scores, (h, Q, T).

    query: (h, Q, D) of the group, scaled. held: each sequence's keys, (h, tiles, D, tokens of a
    tile), and values.
    Hidden scores give exactly 0. A row's bits don't depend on how many more tokens others see. Of
    queries that stand there several times only the first is done.
    """
    (heads, queries, _), seen = query.shape, len(group.ones)
    tile = held[0][0].shape[-1]
    scores = np.empty((heads, queries, -(-seen // tile), tile), query.dtype)
    for block in group.blocks:
        key = held[block.sequence][0][:, : -(-block.seen // tile)]
        into = scores[:, block.queries, : key.shape[1]].swapaxes(1, 2)  # (h, tiles, q, tile)
        product(query[:, None, block.queries], key, out=into)
    pattern = scores.reshape(heads, queries, -1)[..., :seen]
    rows = pattern[:, :: group.times]
    if group.hidden is not None:
        np.copyto(rows, -math.inf, where=group.hidden)
    rows -= np.maximum.reduce(rows, -1, keepdims=True)
    np.exp(rows, out=rows)
    rows /= product(rows, group.ones)[..., :1]
    return pattern


def mixed_values(pattern: Array, held: Sequence[tuple[Array, Array]], group: Group) -> Array:
    """The values (h, T, D) that each sequence holds, mixed by the pattern → (h, tokens, D)."""
    z = np.empty((*pattern.shape[:2], held[0][1].shape[-1]), pattern.dtype)
    for block in group.blocks:
        seen, of = block.seen, block.queries
        product(pattern[:, of, :seen], held[block.sequence][1][:, :seen], out=z[:, of])
    return z[:, :: group.times]
