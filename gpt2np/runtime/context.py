"""The operations of a forward pass: linear layers, attention over KV caches, and hooks.

Shape letters: N tokens of the batch, R tokens whose logits are requested, V vocab_size, C n_embd,
h selected heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.linear import (
    LinearOutput,
    PackedHeads,
    PackedLinear,
    linear,
    map_rows,
    project_heads,
)
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.kernels.packed_matrix import round_up
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.kv_view import KVView
from gpt2np.runtime.query_blocks import QueryBlock as QueryBlock

Item = TypeVar("Item")


class Context:
    """One rank's forward pass over a batch: the operations that a model's forward function calls.

    Operations on many rows (tokens) run on several Python threads.

    Attributes:
        token_ids: (N,), the ids of the batch's tokens.
        positions: (N,), the position of each token in its sequence.
        query_blocks: groups of tokens; attention handles each group in one call.
        layer: the index of the current transformer block.
    """

    max_rows = SMALL_BATCH
    """The most rows (tokens) of an array that a single thread computes; threads share more rows."""

    def __init__(self, config: GPT2Config, batch: Batch) -> None:
        self.token_ids = batch.token_ids
        self.positions = batch.positions
        self.query_blocks = batch.query_blocks
        self.layer = 0
        self._batch = batch
        self._outputs = batch.outputs
        self._last_layer = config.n_layer - 1
        self._n_head, self._head_size = config.n_head, config.n_embd // config.n_head
        self._padded_head_size = round_up(self._head_size)

    @property
    def rows(self) -> slice | IntArray:
        """The indices of the tokens for which the current transformer block computes its output.

        The last block skips tokens whose logits are not requested; all other blocks skip none.
        """
        return self._batch.output_rows if self.layer == self._last_layer else slice(None)

    def hook(self, name: str, x: Array) -> Array:
        """Call the caller's hook with x, and return the hook's result. Without a hook, return x."""
        return x

    def hook_qkv(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Call the caller's hook with queries, keys and values, and return the hook's results.

        Without a hook, return the arguments. Each array is (h, N, D): heads, tokens, channels.
        """
        return q, k, v

    def linear(
        self, x: Array, w: PackedLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Apply a linear layer to x (N, C), then the elementwise function `then`, if given.

        Returns (N, out_features).
        """
        n, outputs = x.shape[0], self._outputs
        if outputs is None:
            return linear(x, w, then)
        if (w.name, n) not in outputs:
            outputs[w.name, n] = LinearOutput(w, n, x.dtype)
        return linear(x, w, then, outputs[w.name, n])

    def unembed(self, x: Array, w: PackedLinear | Iterable[PackedLinear]) -> Array:
        """Return the logits (R, V) for the final hidden states x (R, C) of R tokens.

        `w` is the unembedding matrix, or an iterable over consecutive groups of its columns.
        """
        parts = [
            map_rows(partial(linear, w=part), part.out_features, x)
            for part in ([w] if isinstance(w, PackedLinear) else w)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def qkv(self, x: Array, w: PackedHeads, heads: slice) -> Array:
        """Project x (N, C) to q, k and v of a slice of h heads. Returns (3, h, N, D)."""
        return project_heads(x, w, heads)

    def by_rows(self, function: Callable[..., Array], *arrays: Array) -> Array:
        """Apply a function that treats every row (token) of the arrays separately.

        If there are more than `Context.max_rows` rows, several threads share the rows. The result
        has the shape of the first array.
        """
        if arrays[0].shape[0] <= self.max_rows:
            return function(*arrays)
        return map_rows(function, arrays[0].shape[1], *arrays)

    def by_heads(self, function: Callable[[slice, Array], None], x: Array) -> Array:
        """Compute attention by calls of `function` for groups of heads, on several threads.

        function(heads, z) must write the output of h heads to z (h, N, D). Only the shape and dtype
        of x (N, C) are used. Returns the concatenated outputs of all heads, (N, C).
        """
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
        return z[..., : self._head_size].reshape(x.shape)

    def append_kv(self, heads: slice, keys: Array, values: Array) -> None:
        """Append the keys and values (h, N, D) of the current layer to the KV caches."""
        for write in self._batch.kv_writes:
            write.append(self.layer, heads, keys, values)

    def read_kv(self, heads: slice, queries: QueryBlock) -> KVView:
        """Return a view of the cached keys and values that a query block attends to."""
        return KVView(queries, self._batch.caches, self.layer, heads)

    def for_each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call function(item) for every item, on several threads."""
        if items[1:]:
            parallel_for(function, items, python_threads())
        else:
            for item in items:
                function(item)
