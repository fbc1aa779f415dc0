"""The operations of a forward pass: linear layers, attention over KV caches, and hooks.

Shape letters: N tokens of the batch, n tokens of a query block, R tokens whose logits are
requested, C n_embd, H n_head, h of them in a slice, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.linear import PackedHeads, by_rows, linear, project_heads, unembed
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.packed_matrix import round_up
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.kv_view import KVView
from gpt2np.runtime.query_blocks import QueryBlock

Attend = Callable[[Array, KVView, BoolArray], Array]
"""A function attend(q, kv, mask) → z, attention of n queries: (h, n, D) → (h, n, D)."""


class Context:
    """One rank's forward pass over a batch: the operations that a model's forward function calls.

    `gpt2np.model.gpt2` says what each operation computes. Without a hook, `hook` does nothing, and
    attention skips the hook points of queries, keys and values.

    Attributes:
        token_ids: (N,), the ids of the batch's tokens.
        positions: (N,), the position of each token in its sequence.
    """

    linear = staticmethod(linear)
    unembed = staticmethod(unembed)
    by_rows = staticmethod(by_rows)
    project_heads: Callable[..., Array] = staticmethod(project_heads)
    kv_view: type[KVView] = KVView

    def __init__(self, config: GPT2Config, batch: Batch, threads: int | None = None) -> None:
        """Prepare a pass on `threads` Python threads, by default as many as share a product."""
        self.token_ids = batch.token_ids
        self.positions = batch.positions
        self._batch = batch
        self._threads = threads or python_threads()
        self._last_layer = config.n_layer - 1
        self._n_head, self._head_size = config.n_head, config.n_embd // config.n_head
        self._padded_head_size = round_up(self._head_size)

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Call the caller's hook with x, and return the hook's result. Without a hook, return x."""
        return x

    def requested(self, x: Array, z: Array, layer: int) -> tuple[Array, Array]:
        """Return the rows of x and z (N, C) for which a transformer block computes its output.

        The last block skips tokens whose logits are not requested; all other blocks skip none.
        """
        if layer < self._last_layer:
            return x, z
        rows = self._batch.output_rows
        return x[rows], z[rows]

    def attention(self, attend: Attend, x: Array, w: PackedHeads, layer: int) -> Array:
        """Project x (N, C) to queries, keys and values; return the heads of z joined, (N, C).

        Keys and values are appended to the KV caches. `attend` computes z for slices of the heads
        and for blocks of queries, on several threads.
        """
        z = np.empty((x.shape[0], self._n_head, self._padded_head_size), x.dtype)
        by_head = z.swapaxes(0, 1)
        if self._threads == 1 or x.shape[0] <= SMALL_BATCH:
            self._attend_heads(attend, x, w, layer, slice(0, self._n_head), by_head)
        else:
            parallel_for(
                lambda heads: self._attend_heads(attend, x, w, layer, heads, by_head[heads]),
                even_slices(self._n_head, 2 * self._threads),
                self._threads,
            )
        return z[..., : self._head_size].reshape(x.shape)

    def _attend_heads(
        self, attend: Attend, x: Array, w: PackedHeads, layer: int, heads: slice, z: Array
    ) -> None:
        """Compute attention of a slice of h heads; write the result to z (h, N, D)."""
        qkv = self.project_heads(x, w, heads)
        self._append_kv(qkv, layer, heads)

        def attend_block(block: QueryBlock) -> None:
            kv = self.kv_view(block, self._batch.caches, layer, heads)
            z[:, block.tokens] = attend(qkv[0, :, block.tokens], kv, block.mask)

        blocks = self._batch.query_blocks
        if blocks[1:]:
            parallel_for(attend_block, blocks, self._threads)
        else:
            for block in blocks:  # a rank may have none
                attend_block(block)

    def _append_kv(self, qkv: Array, layer: int, heads: slice) -> None:
        """Append the keys and values in qkv (3, h, N, D) to the KV caches."""
        for write in self._batch.kv_writes:
            write.append(layer, heads, qkv[1:])
