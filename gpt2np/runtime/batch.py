"""The tokens of one forward pass: new tokens of several sequences, without padding.

Attention handles the tokens in query blocks. A query block has consecutive tokens of one sequence,
or tokens of several sequences. The queries of a block share one softmax call, but each query
attends only to keys and values of its own sequence. A block has at most QUERY_BLOCK queries, so
most scores that the causal mask hides are not computed.

Shape letters: N tokens of the batch, n tokens of one sequence, R tokens whose logits are requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from gpt2np.kernels.array import BoolArray, IntArray
from gpt2np.runtime.kv_cache import KVCache, KVWrite, kv_writes

PREFILL_CHUNK = 512
"""The largest number of tokens in one pass. The limit bounds the memory that a prompt takes."""

MIN_TOKENS_PER_WORKER = 8
"""With fewer tokens per thread or rank, sharing attention costs more than it gains."""

QUERY_BLOCK = 64
_MAX_LENGTH_GAP = 128  # keys; with a larger gap, padded scores cost more than a second product


@dataclass(frozen=True)
class KVSpan:
    """Sequences with adjacent cache slots and equal numbers of queries: one product of a block.

    Attributes:
        sequence: the index of the first sequence in the batch.
        count: the number of sequences.
        queries: the range of the sequences' queries in the block.
        n_keys: keys of the longest sequence up to its last query in the block, minus the cached
            keys of the batch's first sequence. All decode steps of a batch thus have equal spans.
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
        mask: (n, m), the causal mask for the last m keys: True where a key follows the query.
            Every query attends to all earlier keys.
        n_keys: the number of keys of the longest sequence, counted as in `KVSpan`.
    """

    tokens: slice
    spans: tuple[KVSpan, ...]
    mask: BoolArray
    n_keys: int


@dataclass(frozen=True)
class Batch:
    """The input of one forward pass on one rank.

    Attributes:
        token_ids: (N,), the ids of the tokens.
        positions: (N,), the position of each token in its sequence.
        counts: for each sequence, the number of its tokens in the pass, with all ranks' tokens.
        caches: the KV cache of each sequence, with capacity for the new tokens.
        kv_writes: where the KV caches store the keys and values of this rank's tokens.
        query_blocks: this rank's queries, in blocks for attention.
        output_rows: (R,), the indices in this batch of the tokens whose logits are requested.
        logits_mask: for each token whose logits the caller requests, whether this batch has it.
    """

    token_ids: IntArray
    positions: IntArray
    counts: list[int]
    caches: list[KVCache]
    kv_writes: list[KVWrite]
    query_blocks: list[QueryBlock]
    output_rows: IntArray
    logits_mask: BoolArray

    def share_of(self, rank: int, world_size: int) -> Batch:
        """Return the part of this batch that one rank computes: some of the query blocks.

        Later blocks attend to more keys. To balance the work, the order of the ranks alternates: of
        two ranks, rank 0 gets blocks 0, 3, 4, 7, …
        """
        turns = [*range(world_size), *reversed(range(world_size))]
        blocks = [b for i, b in enumerate(self.query_blocks) if turns[i % len(turns)] == rank]
        tokens = np.concatenate([[], *(np.r_[block.tokens] for block in blocks)]).astype(np.int64)
        stops = np.cumsum([block.tokens.stop - block.tokens.start for block in blocks]).tolist()
        packed = map(slice, [0, *stops], stops)
        sequences = np.repeat(range(len(self.counts)), self.counts)
        logits_mask, is_mine = self.logits_mask.copy(), np.isin(self.output_rows, tokens)
        logits_mask[logits_mask] = is_mine
        return replace(
            self,
            token_ids=self.token_ids[tokens],
            positions=self.positions[tokens],
            kv_writes=kv_writes(self.caches, sequences[tokens], self.positions[tokens]),
            query_blocks=[replace(b, tokens=new) for b, new in zip(blocks, packed, strict=True)],
            output_rows=np.searchsorted(tokens, self.output_rows[is_mine]),
            logits_mask=logits_mask,
        )


def make_batches(
    sequences: Sequence[IntArray],
    caches: Sequence[KVCache],
    logits_indices: IntArray,
    n_workers: int | None,
) -> Iterator[Batch]:
    """Split the new tokens of the sequences into batches of at most PREFILL_CHUNK tokens.

    The caches need capacity for the new tokens. Compute each batch before requesting the next: the
    next batch depends on the caches' new lengths. `logits_indices` (R,) count over all sequences.
    `n_workers` threads or ranks share a batch. If `n_workers` is None, as hooks need, there is one
    batch with one query block per sequence.
    """
    total = sum(map(len, sequences))
    chunk = PREFILL_CHUNK if n_workers else total
    for first in range(0, total, chunk):
        new: list[tuple[IntArray, KVCache]] = []
        start = 0
        for ids, cache in zip(sequences, caches, strict=True):
            part = ids[max(0, first - start) : max(0, first + chunk - start)]
            start += len(ids)
            if len(part):
                new.append((part, cache))
        mask = (first <= logits_indices) & (logits_indices < first + chunk)
        yield _make_batch(new, logits_indices[mask] - first, mask, n_workers)


def _make_batch(
    new: Sequence[tuple[IntArray, KVCache]],
    output_rows: IntArray,
    logits_mask: BoolArray,
    n_workers: int | None,
) -> Batch:
    caches = [cache for _, cache in new]
    counts, first = [len(ids) for ids, _ in new], caches[0].length
    make_layout = _layout if n_workers else _layout.__wrapped__  # large masks are not kept
    positions, sequences, blocks = make_layout(
        tuple(counts),
        tuple([cache.length - first for cache in caches]),
        (False, *[b.place == (a.place[0], a.place[1] + 1) for a, b in pairwise(caches)]),
        _queries_per_block(sum(counts), n_workers) if n_workers else None,
    )
    positions = positions + first
    return Batch(
        token_ids=np.concatenate([ids for ids, _ in new]),
        positions=positions,
        counts=counts,
        caches=caches,
        kv_writes=kv_writes(caches, sequences, positions),
        query_blocks=blocks,
        output_rows=output_rows,
        logits_mask=logits_mask,
    )


@lru_cache(maxsize=64)
def _layout(
    counts: tuple[int, ...],
    cached: tuple[int, ...],
    adjacent: tuple[bool, ...],
    max_queries: int | None,
) -> tuple[IntArray, IntArray, list[QueryBlock]]:
    """Return the tokens' positions, the indices of their sequences, and the query blocks.

    Positions and `cached` count from the first new token of the batch's first sequence, so that
    later decode steps share the result. `counts` has the numbers of new tokens; `adjacent` tells
    for each sequence whether its cache follows the previous sequence's cache.
    """
    starts = zip(counts, cached, strict=True)
    positions = np.concatenate([np.arange(start, start + n) for n, start in starts])
    blocks = query_blocks(counts, cached, max_queries, adjacent)
    return positions, np.repeat(range(len(counts)), counts), blocks


def _queries_per_block(tokens: int, n_workers: int) -> int:
    """Return how many queries per attention block divide the tokens evenly among workers."""
    blocks_per_worker = -(-tokens // (n_workers * QUERY_BLOCK))
    return max(MIN_TOKENS_PER_WORKER, -(-tokens // (n_workers * blocks_per_worker)))


def query_blocks(
    lengths: Sequence[int],
    cached: Sequence[int],
    max_queries: int | None = QUERY_BLOCK,
    adjacent: Sequence[bool] = (),
) -> list[QueryBlock]:
    """Group the new tokens of several sequences into query blocks, `lengths` after `cached` tokens.

    If `max_queries` is None, each sequence is a block. `adjacent` tells for each sequence whether
    its cache slot follows the previous sequence's slot.
    """
    blocks: list[list[KVSpan]] = []
    size, first_token = max_queries or max(lengths), 0
    for sequence, (n, n_cached) in enumerate(zip(lengths, cached, strict=True)):
        for start in range(0, n, size):
            stop = min(start + size, n)
            queries = slice(first_token + start, first_token + stop)  # of the batch
            if not blocks or queries.stop - blocks[-1][0].queries.start > (max_queries or 0):
                blocks.append([])
            blocks[-1].append(KVSpan(sequence, 1, queries, n_cached + stop))
        first_token += n
    return [_query_block(chunks, adjacent or [False] * len(lengths)) for chunks in blocks]


def _query_block(chunks: Sequence[KVSpan], adjacent: Sequence[bool]) -> QueryBlock:
    """Return the block of chunks, each of one sequence, whose `queries` count from the batch's."""
    spans: list[list[KVSpan]] = []
    for chunk in chunks:
        if not spans or not _extends(spans[-1], chunk, adjacent):
            spans.append([])
        spans[-1].append(chunk)
    tokens = slice(chunks[0].queries.start, chunks[-1].queries.stop)
    n_keys = max(chunk.n_keys for chunk in chunks)
    visible: IntArray = np.concatenate(  # how many keys each query sees
        [np.arange(chunk.n_keys - _count(chunk), chunk.n_keys) + 1 for chunk in chunks]
    )
    mask = np.arange(visible.min(), n_keys) >= visible[:, None]
    return QueryBlock(tokens, tuple(_joined(span, tokens.start) for span in spans), mask, n_keys)


def _count(chunk: KVSpan) -> int:
    return int(chunk.queries.stop - chunk.queries.start)


def _extends(span: Sequence[KVSpan], chunk: KVSpan, adjacent: Sequence[bool]) -> bool:
    """Tell whether the matrix product for a span can also compute the scores of `chunk`."""
    n_keys = [chunk.n_keys, *(other.n_keys for other in span)]
    is_next = chunk.sequence == span[-1].sequence + 1 and adjacent[chunk.sequence]
    is_alike = _count(chunk) == _count(span[-1])
    return is_next and is_alike and max(n_keys) - min(n_keys) <= _MAX_LENGTH_GAP


def _joined(span: Sequence[KVSpan], first_token: int) -> KVSpan:
    queries = slice(span[0].queries.start - first_token, span[-1].queries.stop - first_token)
    return KVSpan(span[0].sequence, len(span), queries, max(chunk.n_keys for chunk in span))
