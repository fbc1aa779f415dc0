"""Query blocks: groups of new tokens that attention handles in one call.

A query block has consecutive tokens of one sequence, or tokens of several sequences. The queries of
a block share one softmax call, but each query attends only to keys and values of its own sequence.
A block has at most QUERY_BLOCK queries, so most scores that the causal mask hides are not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpt2np.kernels.array import BoolArray, IntArray

QUERY_BLOCK = 64
_MAX_LENGTH_GAP = 128  # keys; with a larger gap, padded scores cost more than a second product


@dataclass(frozen=True)
class KVSpan:
    """The sequences of a query block whose attention scores one matrix product computes.

    The sequences have adjacent cache slots, and equal numbers of queries in the block.

    Attributes:
        sequence: the index of the first sequence in the batch.
        count: the number of sequences.
        queries: the range of the sequences' queries in the block.
        n_keys: how many keys the last query of the longest sequence attends to.
    """

    sequence: int
    count: int
    queries: slice
    n_keys: int


@dataclass(frozen=True)
class QueryBlock:
    """New tokens that attention handles in one call; each token has one query.

    Attributes:
        tokens: the range of the block's n tokens in the batch.
        spans: the block's sequences, grouped by matrix product, in the order of the queries.
        mask: (n, m), the causal mask for the last m of T keys: True where a key follows the query.
            Every query attends to the first T - m keys.
        n_keys: T, the number of keys of the longest sequence.
    """

    tokens: slice
    spans: tuple[KVSpan, ...]
    mask: BoolArray
    n_keys: int

    def later(self, by: int) -> QueryBlock:
        """Return a copy of this query block for tokens that are `by` positions later."""
        spans = tuple([KVSpan(s.sequence, s.count, s.queries, s.n_keys + by) for s in self.spans])
        return QueryBlock(self.tokens, spans, self.mask, self.n_keys + by)


class _Chunk(NamedTuple):
    """Consecutive queries of one sequence in one block; the last query attends to `n_keys` keys."""

    sequence: int
    tokens: slice
    n_keys: int

    @property
    def n(self) -> int:
        return int(self.tokens.stop - self.tokens.start)


def query_blocks(
    lengths: Sequence[int],
    cached: Sequence[int],
    max_queries: int = QUERY_BLOCK,
    *,
    adjacent: Sequence[bool] = (),
    whole_sequences: bool = False,
) -> list[QueryBlock]:
    """Group the new tokens of several sequences into query blocks.

    Args:
        lengths: the number of new tokens of each sequence.
        cached: the number of earlier tokens of each sequence, which are in its KV cache.
        max_queries: the largest number of queries in one block.
        adjacent: for each sequence, whether its cache slot directly follows the slot of the
            previous sequence.
        whole_sequences: make one block per sequence, so that a hook sees whole patterns.
    """
    blocks: list[list[_Chunk]] = []
    for chunk in _chunks(lengths, cached, max(lengths) if whole_sequences else max_queries):
        is_full = blocks and chunk.tokens.stop - blocks[-1][0].tokens.start > max_queries
        if not blocks or whole_sequences or is_full:
            blocks.append([])
        blocks[-1].append(chunk)
    return [_query_block(chunks, adjacent or [False] * len(lengths)) for chunks in blocks]


def _chunks(lengths: Sequence[int], cached: Sequence[int], max_queries: int) -> Iterator[_Chunk]:
    first_token = 0
    for sequence, (n, n_cached) in enumerate(zip(lengths, cached, strict=True)):
        for start in range(0, n, max_queries):
            stop = min(start + max_queries, n)
            tokens = slice(first_token + start, first_token + stop)
            yield _Chunk(sequence, tokens, n_cached + stop)
        first_token += n


def _query_block(chunks: Sequence[_Chunk], adjacent: Sequence[bool]) -> QueryBlock:
    spans: list[list[_Chunk]] = []
    for chunk in chunks:
        if not spans or not _extends(spans[-1], chunk, adjacent):
            spans.append([])
        spans[-1].append(chunk)
    tokens = slice(chunks[0].tokens.start, chunks[-1].tokens.stop)
    n_keys = max(chunk.n_keys for chunk in chunks)
    visible: IntArray = np.concatenate(  # how many keys each query sees
        [np.arange(chunk.n_keys - chunk.n, chunk.n_keys) + 1 for chunk in chunks]
    )
    mask = np.arange(visible.min(), n_keys) >= visible[:, None]
    kv_spans = tuple(_kv_span(span, tokens.start) for span in spans)
    return QueryBlock(tokens, kv_spans, mask, n_keys)


def _extends(span: Sequence[_Chunk], chunk: _Chunk, adjacent: Sequence[bool]) -> bool:
    """Tell whether the matrix product for a span can also compute the scores of `chunk`."""
    n_keys = [chunk.n_keys, *(other.n_keys for other in span)]
    is_next = chunk.sequence == span[-1].sequence + 1 and adjacent[chunk.sequence]
    return is_next and chunk.n == span[-1].n and max(n_keys) - min(n_keys) <= _MAX_LENGTH_GAP


def _kv_span(span: Sequence[_Chunk], first_token: int) -> KVSpan:
    queries = slice(span[0].tokens.start - first_token, span[-1].tokens.stop - first_token)
    return KVSpan(span[0].sequence, len(span), queries, max(chunk.n_keys for chunk in span))
