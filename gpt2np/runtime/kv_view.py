"""Attention's two matrix products, computed on the KV cache's tiles without copying them.

Shape letters: h heads, n queries of a block, Q = copies · n, S sequences of a span, D head size,
T keys, in tiles of TILE keys. A span is a group of sequences in adjacent slots (`KVSpan`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.kernels.array import Array
from gpt2np.kernels.linear import sum_partials
from gpt2np.kernels.matmul import matmul
from gpt2np.runtime.query_blocks import QueryBlock


class KVView:
    """The cached keys and values that one block of queries attends to."""

    def __init__(self, block: QueryBlock, tiles: Sequence[tuple[Array, Array]]) -> None:
        """Take each span's tiles: keys (tiles, S, h, D, TILE), values (tiles, S, h, TILE, D)."""
        self._block = block
        self._tiles = tiles

    def scores(self, query: Array) -> Array:
        """Return the dot products of queries (h, n, D) and keys, without the causal mask.

        Returns (h, n, T).
        """
        block = self._block
        if block.copies > 1:
            query = np.repeat(query, block.copies, axis=1)
        (heads, queries, _), tile = query.shape, self._tiles[0][0].shape[-1]
        scores = np.empty((heads, queries, -(-block.n_keys // tile), tile), query.dtype)
        self._by_tile = scores.transpose(2, 0, 1, 3)  # (tiles, h, Q, TILE)
        for span, (keys, _) in zip(block.spans, self._tiles, strict=True):
            matmul(
                _by_sequence(query[:, span.queries], span.count),
                keys,
                out=_by_sequence(self._by_tile[: len(keys), :, span.queries], span.count),
            )
        flat = scores.reshape(heads, queries, -1)
        flat[..., block.n_keys :] = 0  # the values of the padding keys must not count
        self._visible = flat[:, :: block.copies, : block.n_keys]
        return self._visible

    def weighted_values(self, pattern: Array) -> Array:
        """Return pattern @ values, for an attention pattern (h, n, T). Returns (h, n, D).

        Call `scores` first. `pattern` may be the array that `scores` returned, overwritten with
        the pattern; any other array is copied into it. Each tile is multiplied separately; the
        products are then added in ascending order.
        """
        if pattern is not self._visible:
            self._visible[...] = pattern
        results: list[Array] = []
        for span, (_, values) in zip(self._block.spans, self._tiles, strict=True):
            weights = _by_sequence(self._by_tile[: len(values), :, span.queries], span.count)
            z = sum_partials(matmul(weights, values))  # (S, h, n, D)
            if span.count > 1:
                z = z.swapaxes(0, 1).reshape(1, z.shape[1], -1, z.shape[-1])
            results.append(z[0])
        joined = results[0] if len(results) == 1 else np.concatenate(results, axis=1)
        return joined[:, :: self._block.copies]


def _by_sequence(array: Array, count: int) -> Array:
    """Split the queries of a span by sequence: (…, h, Q, m) → (…, S, h, n, m), where Q = S · n."""
    if count == 1:
        return array[..., None, :, :, :]
    heads, queries, m = array.shape[-3:]
    split = array.reshape(*array.shape[:-3], heads, count, queries // count, m)
    return split.swapaxes(-4, -3)
