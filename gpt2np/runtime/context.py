"""Where the pieces of a forward pass run. A context never changes the result.

Shape letters: N tokens of the batch, C n_embd, H heads of D channels, h some of the heads, n
queries of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.linear import PackedHeads, PackedLinear, linear, map_rows, project_heads
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.packed_matrix import round_up
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.kv_view import KVView
from gpt2np.runtime.query_blocks import QueryBlock as QueryBlock

Item = TypeVar("Item")


class Context:
    """One rank's forward pass over a batch, on Python threads where they pay off.

    Attributes:
        token_ids: (N,).
        positions: (N,).
        query_blocks: the blocks of queries that attention computes at once.
        layer: the index of the current block.
    """

    max_rows = SMALL_BATCH
    """More rows than this run in chunks, on threads."""

    def __init__(self, config: GPT2Config, batch: Batch) -> None:
        self.token_ids = batch.token_ids
        self.positions = batch.positions
        self.query_blocks = batch.query_blocks
        self.layer = 0
        self._batch = batch
        self._last_layer = config.n_layer - 1
        self._n_head, self._head_size = config.n_head, config.n_embd // config.n_head
        self._padded_head_size = round_up(self._head_size)

    @property
    def rows(self) -> slice | IntArray:
        """The tokens that the rest of the current block computes.

        All tokens; in the last block only those whose logits are requested.
        """
        return self._batch.output_rows if self.layer == self._last_layer else slice(None)

    def hook(self, name: str, x: Array) -> Array:
        """Return x, after the caller's hook has seen and edited it. Without a hook: x itself."""
        return x

    def hook_qkv(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Return queries, keys and values (h, N, D), after the caller's hook has edited them."""
        return q, k, v

    def linear(
        self, x: Array, w: PackedLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Return x @ w.weight + w.bias, and an elementwise function of it: (N, C) → (N, out)."""
        y = linear(x, w.panels, w.bias)[:, : w.out_features]
        return then(y) if then else y

    def unembed(self, x: Array, w: PackedLinear | Iterable[PackedLinear]) -> Array:
        """Return x @ w.weight: (R, C) → (R, V), from the whole matrix or consecutive columns."""
        parts = [
            map_rows(partial(self.linear, w=part), part.out_features, x)
            for part in ([w] if isinstance(w, PackedLinear) else w)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def qkv(self, x: Array, w: PackedHeads, heads: slice) -> Array:
        """Return the queries, keys and values of h heads: (N, C) → (3, h, N, D)."""
        return project_heads(x, w, heads)

    def by_rows(self, function: Callable[..., Array], *arrays: Array) -> Array:
        """Return function(*arrays), shaped like the first array; many rows run in chunks."""
        if arrays[0].shape[0] <= self.max_rows:
            return function(*arrays)
        return map_rows(function, arrays[0].shape[1], *arrays)

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Let function(heads, z) fill z (h, N, D) for some of the heads; return all, (N, C)."""
        z = np.empty((x.shape[0], self._n_head, self._padded_head_size), x.dtype)
        if x.shape[0] <= self.max_rows:
            function(slice(0, self._n_head), z.swapaxes(0, 1))
        else:
            threads = python_threads()
            parallel_for(
                lambda heads: function(heads, z[:, heads].swapaxes(0, 1)),
                even_slices(self._n_head, 2 * threads),
                threads,
            )
        return self._join_heads(z)

    def _join_heads(self, z: Array) -> Array:
        """Drop the heads' padding and join them: (N, H, D) → (N, C)."""
        return z[..., : self._head_size].reshape(z.shape[0], self._n_head * self._head_size)

    def append_kv(self, heads: slice, keys: Array, values: Array) -> None:
        """Append the keys and values (h, N, D) of this layer to the KV cache."""
        for write in self._batch.kv_writes:
            write.append(self.layer, heads, keys, values)

    def read_kv(self, heads: slice, block: QueryBlock) -> KVView:
        """Return the keys and values that a block of queries attends to."""
        caches = self._batch.caches
        return KVView(
            block,
            [
                caches[span.sequence].read(self.layer, heads, span.n_keys, span.count)
                for span in block.spans
            ],
        )

    def for_each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call function(item) for every item."""
        if len(items) == 1:
            function(items[0])
        else:
            parallel_for(function, items, python_threads())
