"""Attention's two matrix products, which read the KV cache's tiles in place.

Shape letters: h heads, n queries of a query block, Q queries of a span (copies included), S
sequences of a span, D head size, T keys, in tiles of TILE keys. A span is a group of sequences in
adjacent slots (`KVSpan`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.linear import sum_partials
from gpt2np.kernels.matmul import matmul
from gpt2np.runtime.query_blocks import KVSpan, QueryBlock


class KVView:
    """The cached keys and values that one query block attends to."""

    def __init__(self, block: QueryBlock, tiles: Sequence[tuple[Array, Array]]) -> None:
        """Set each span's tiles: keys (tiles, S, h, D, TILE), values (tiles, S, h, TILE, D)."""
        self._block = block
        self._tiles = tiles

    def scores(self, query: Array) -> Array:
        """Return the dot product of each query with each key, before the causal mask.

        Takes queries (h, n, D). Returns (h, n, T).
        """
        block = self._block
        if block.copies > 1:
            query = np.repeat(query, block.copies, axis=1)
        (heads, queries, _), tile = query.shape, self._tiles[0][0].shape[-1]
        scores = np.empty((heads, queries, -(-block.n_keys // tile), tile), query.dtype)
        for span, (keys, _) in zip(block.spans, self._tiles, strict=True):
            span_scores = _by_sequence(scores[:, span.queries, : keys.shape[0]], span)
            matmul(_by_sequence(query[:, span.queries], span), keys, out=span_scores)
        self._scores = scores
        flat = scores.reshape(heads, queries, -1)
        flat[..., block.n_keys :] = 0  # in `weighted_values`, padding keys must not count
        self._visible = flat[:, :: block.copies, : block.n_keys]
        return self._visible

    def weighted_values(self, pattern: Array) -> Array:
        """Return pattern @ values, for an attention pattern (h, n, T). Returns (h, n, D).

        Call `scores` first. If `pattern` is the array that `scores` returned, edited in place, no
        copy is made. Any other array is copied into that array. Each tile is multiplied separately.
        The products are then added in the order of the tiles.
        """
        if pattern is not self._visible:
            self._visible[...] = pattern
        head_size = self._tiles[0][1].shape[-1]
        z = np.empty((*self._scores.shape[:2], head_size), pattern.dtype)
        for span, (_, values) in zip(self._block.spans, self._tiles, strict=True):
            span_pattern = _by_sequence(self._scores[:, span.queries, : values.shape[0]], span)
            _by_sequence(z[:, span.queries], span)[...] = sum_partials(matmul(span_pattern, values))
        return z[:, :: self._block.copies]


def _by_sequence(array: Array, span: KVSpan) -> Array:
    """Split the queries of a span by sequence.

    An array (h, Q, D) becomes (S, h, Q / S, D). An array (h, Q, tiles, TILE) becomes
    (tiles, S, h, Q / S, TILE).
    """
    if span.count == 1:
        return array[None] if array.ndim == 3 else array.transpose(2, 0, 1, 3)[:, None]
    split = array.reshape(array.shape[0], span.count, -1, *array.shape[2:])
    return split.swapaxes(0, 1) if array.ndim == 3 else split.transpose(3, 1, 0, 2, 4)
