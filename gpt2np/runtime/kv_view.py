"""Attention's two matrix products, which read the KV cache's tiles in place.

Shape letters: h heads, n queries of a query block, Q queries of a span, S sequences of a span
(`KVSpan`), D head size, T keys, in tiles of TILE keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.linear import sum_partials
from gpt2np.kernels.matmul import matmul
from gpt2np.runtime.kv_cache import TILE, KVCache
from gpt2np.runtime.query_blocks import QueryBlock


class KVView:
    """The cached keys and values that one query block attends to."""

    matmul: Callable[..., Array] = staticmethod(matmul)
    weighted_rows: Callable[..., Array] = staticmethod(matmul)

    def __init__(
        self, block: QueryBlock, caches: Sequence[KVCache], layer: int, heads: slice
    ) -> None:
        self._spans = []  # (span, keys, values, span's part of the pattern)
        reads = [caches[s.sequence].read(layer, heads, s.n_keys, s.count) for s in block.spans]
        (n_queries, _), (keys, _) = block.mask.shape, reads[0]
        tiles = np.empty((keys.shape[2], n_queries, -(-block.n_keys // TILE), TILE), keys.dtype)
        flat = tiles.reshape(*tiles.shape[:2], -1)
        self._pattern, self._padding = flat[..., : block.n_keys], flat[..., block.n_keys :]
        by_tile = tiles.transpose(2, 0, 1, 3)  # (tiles, h, n, TILE)
        for span, (keys, values) in zip(block.spans, reads, strict=True):
            part = by_tile[: keys.shape[0], :, span.queries]
            if span.count == 1:
                self._spans += [(span, keys[:, 0], values[:, 0], part)]
            else:
                self._spans += [(span, keys, values, _by_sequence(part, span.count))]

    def scores(self, query: Array) -> Array:
        """Return the dot products of queries (h, n, D) and keys, without the causal mask.

        Returns (h, n, T) for the T keys of the query block.
        """
        for span, keys, _, part in self._spans:
            span_query = query[:, span.queries]
            if span.count > 1:
                span_query = _by_sequence(span_query, span.count)
            self.matmul(span_query, keys, out=part)
        return self._pattern

    def weighted_values(self, pattern: Array) -> Array:
        """Return pattern @ values, for an attention pattern (h, n, T). Returns (h, n, D).

        A pattern computed in place, in the array that `scores` returned, saves a copy. The products
        of the tiles are added in ascending order.
        """
        if pattern is not self._pattern:
            self._pattern[...] = pattern
        self._padding[...] = 0
        z: list[Array] = []  # (h, Q, D) for each span
        for span, _, values, part in self._spans:
            result = self.weighted_rows(part, values)  # (tiles, h, Q, D) or (tiles, S, h, Q / S, D)
            result = sum_partials(result)
            z += [result] if span.count == 1 else [*result]
        return np.concatenate(z, axis=1) if z[1:] else z[0]


def _by_sequence(array: Array, count: int) -> Array:
    """Split the axis of Q queries by sequence: (…, h, Q, m) → (…, count, h, Q / count, m)."""
    *leading, heads, queries, m = array.shape
    return array.reshape(*leading, heads, count, queries // count, m).swapaxes(-4, -3)
