"""Attention's two matrix products, which read the KV cache's tiles in place.

Shape letters: h heads, n queries of a query block, Q queries of a span (repeated queries included),
S sequences of a span (`KVSpan`), D head size, T keys, in tiles of TILE keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.linear import sum_partials
from gpt2np.kernels.matmul import matmul
from gpt2np.runtime.kv_cache import TILE, KVCache
from gpt2np.runtime.query_blocks import QueryBlock


class KVView:
    """The cached keys and values that one query block attends to."""

    def __init__(
        self, block: QueryBlock, caches: Sequence[KVCache], layer: int, heads: slice
    ) -> None:
        self._block = block
        self._caches, self._layer, self._heads = caches, layer, heads

    def scores(self, query: Array) -> Array:
        """Return the dot products of queries (h, n, D) and keys, without the causal mask.

        Returns (h, n, T) for the T keys of the query block.
        """
        block = self._block
        if block.copies > 1:
            query = np.repeat(query, block.copies, axis=1)
        (heads, queries, _), n_tiles = query.shape, -(-block.n_keys // TILE)
        scores = np.empty((heads, queries, n_tiles, TILE), query.dtype)
        self._by_tile = scores.transpose(2, 0, 1, 3)  # (tiles, h, Q, TILE)
        self._patterns_and_values: list[tuple[Array, Array]] = []  # for each span
        for span in block.spans:
            keys, values = self._caches[span.sequence].read(
                self._layer, self._heads, span.n_keys, span.count
            )
            span_query = query[:, span.queries]
            span_scores = self._by_tile[: keys.shape[0], :, span.queries]
            if span.count == 1:
                keys, values = keys[:, 0], values[:, 0]
            else:
                span_query = _by_sequence(span_query, span.count)
                span_scores = _by_sequence(span_scores, span.count)
            matmul(span_query, keys, out=span_scores)
            self._patterns_and_values += [(span_scores, values)]
        flat = scores.reshape(heads, queries, -1)
        flat[..., block.n_keys :] = 0  # in `weighted_values`, padding keys must not count
        self._visible = flat[:, :: block.copies, : block.n_keys]
        return self._visible

    def weighted_values(self, pattern: Array) -> Array:
        """Return pattern @ values, for an attention pattern (h, n, T). Returns (h, n, D).

        Call `scores` first. A pattern computed in place, in the array that `scores` returned, saves
        a copy. The products of the tiles are added in ascending order.
        """
        if pattern is not self._visible:
            self._visible[...] = pattern
        z: list[Array] = []  # (h, Q, D) for each span
        for span_pattern, values in self._patterns_and_values:
            result = matmul(span_pattern, values)  # (tiles, h, Q, D) or (tiles, S, h, n, D)
            result = sum_partials(result) if result.shape[0] > 1 else result[0]
            if result.ndim == 4:
                result = np.concatenate([*result], axis=1)
            z += [result]
        joined = np.concatenate(z, axis=1) if z[1:] else z[0]
        return joined[:, :: self._block.copies]


def _by_sequence(array: Array, count: int) -> Array:
    """Split the axis of Q queries by sequence: (…, h, Q, m) → (…, count, h, Q / count, m)."""
    *leading, heads, queries, m = array.shape
    return array.reshape(*leading, heads, count, queries // count, m).swapaxes(-4, -3)
