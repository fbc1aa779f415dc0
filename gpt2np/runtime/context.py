"""The operations of a forward pass: linear layers, attention over KV caches, and hooks.

Hooks are functions that read and replace arrays inside a forward pass.

Shape letters: N tokens of the batch, n tokens of a query block, R tokens whose logits are
requested, C n_embd, H n_head, h of them in a slice, D channels of a head, Q queries of a span,
S sequences of a span (`KVSpan`), T keys, in tiles of TILE keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.kernels import exact
from gpt2np.kernels.array import Array, BoolArray, IntArray, real_array
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.exact import ExactLinear
from gpt2np.kernels.matmul import SMALL_BATCH, matmul
from gpt2np.kernels.packed_matrix import (
    PackedMatrix,
    by_rows,
    linear,
    project_heads,
    round_up,
    sum_partials,
    unembed,
)
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.runtime.batch import Batch, QueryBlock
from gpt2np.runtime.kv_cache import TILE, KVCache
from gpt2np.runtime.ranks import ALONE, Rank

L = TypeVar("L")  # the weights of a linear layer

Hook = Callable[[str, Array], Array]
"""A function hook(name, array) → array, called at every hook point. The result replaces the array,
and must be real numbers in the array's shape. If a hook has a method `for_layers`, each pass calls
the hook that `for_layers(n_layer)` returns. Arrays that have only the rows whose logits are
requested go to the hook that its `for_rows(rows, n)`, if any, returns."""


@dataclass(frozen=True)
class Chain:
    """A hook that applies several hooks in order; made by `as_chain`."""

    hooks: tuple[Hook, ...]

    def for_layers(self, n_layer: int) -> Chain:
        """Return the chain for a model with `n_layer` blocks, of hook.for_layers where defined."""
        return self._each("for_layers", n_layer)

    def for_rows(self, rows: IntArray, n: int) -> Chain:
        """Return the chain for arrays of these rows of n tokens, of hook.for_rows where defined."""
        return self._each("for_rows", rows, n)

    def after_prompt(self) -> Chain:
        """Return the chain for generated tokens, of hook.after_prompt(), if any, where defined."""
        return self._each("after_prompt")

    def _each(self, method: str, *args: Any) -> Chain:
        hooks = (getattr(h, method)(*args) if hasattr(h, method) else h for h in self.hooks)
        return Chain(tuple(hook for hook in hooks if hook is not None))

    def __call__(self, name: str, array: Array) -> Array:
        """Pass the array through all hooks; return the result."""
        for hook in self.hooks:
            array = call_hook(hook, name, array)
        return array


def as_chain(hooks: Hook | Sequence[Hook]) -> Chain:
    """Return one hook that applies the given hook, or the hooks of a list in order.

    Raises:
        InvalidArgumentError: `hooks` is neither a function nor a list of functions.
    """
    functions = (hooks,) if callable(hooks) else hooks
    is_list = isinstance(functions, Sequence) and all(map(callable, functions))
    check_argument(is_list, "interventions", hooks, "a function or a list of functions")
    lists = (f.hooks if isinstance(f, Chain) else (f,) for f in functions)
    return Chain(tuple(hook for hooks in lists for hook in hooks))


def call_hook(hook: Hook, name: str, array: Array) -> Array:
    """Call the hook with an array; return the result in the array's dtype.

    Raises:
        InvalidArgumentError: the result is not an array of real numbers with the array's shape.
    """
    result = hook(name, array)
    try:
        return real_array(result, array)
    except ValueError as error:
        raise InvalidArgumentError(
            f"the hook must return real numbers of shape {array.shape} at {name}; got: {error}"
        ) from error


def full_name(name: str, layer: int | None) -> str:
    """Return the name that a hook gets: blocks.{layer}.{name}, or just `name` without a layer."""
    return name if layer is None else f"blocks.{layer}.{name}"


class KVView:
    """The cached keys and values that one query block attends to; products read tiles in place."""

    matmul: Callable[..., Array] = staticmethod(matmul)
    weighted_rows: Callable[..., Array] = staticmethod(matmul)

    def __init__(
        self, block: QueryBlock, caches: Sequence[KVCache], layer: int, heads: slice
    ) -> None:
        self._spans = []  # (span, keys, values, span's part of the pattern)
        cached, spans = caches[0].length, block.spans
        reads = [caches[s.sequence].read(layer, heads, cached + s.n_keys, s.count) for s in spans]
        (n_queries, _), (keys, _) = block.mask.shape, reads[0]
        n_keys = cached + block.n_keys
        tiles = np.empty((keys.shape[2], n_queries, -(-n_keys // TILE), TILE), keys.dtype)
        flat = tiles.reshape(*tiles.shape[:2], -1)
        self._pattern, self._padding = flat[..., :n_keys], flat[..., n_keys:]
        by_tile = tiles.transpose(2, 0, 1, 3)  # (tiles, h, n, TILE)
        for span, (keys, values) in zip(spans, reads, strict=True):
            part = by_tile[: keys.shape[0], :, span.queries]
            if span.count == 1:
                self._spans += [(span, keys[:, 0], values[:, 0], part)]
            else:
                self._spans += [(span, keys, values, _by_sequence(part, span.count))]

    def scores(self, query: Array) -> Array:
        """Return the dot products of queries (h, n, D) and keys, without the causal mask.

        Returns (h, n, T) for the T keys of the block's longest sequence.
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
            result = sum_partials(self.weighted_rows(part, values))  # (h, Q, D), (S, h, Q / S, D)
            z += [result] if span.count == 1 else [*result]
        return np.concatenate(z, axis=1) if z[1:] else z[0]


def _by_sequence(array: Array, count: int) -> Array:
    """Split the axis of Q queries by sequence: (…, h, Q, m) → (…, count, h, Q / count, m)."""
    *leading, heads, queries, m = array.shape
    return array.reshape(*leading, heads, count, queries // count, m).swapaxes(-4, -3)


Attend = Callable[[Array, KVView, BoolArray], Array]
"""A function attend(q, kv, mask) → z, attention of n queries: (h, n, D) → (h, n, D)."""


class BatchContext(Generic[L]):
    """One rank's forward pass over a batch: the operations that a model's forward function calls.

    `gpt2np.model.gpt2` says what each operation computes. A hook is called on one thread, and gets
    whole arrays without padding, in the order of `gpt2np.model.hook_points.HOOK_POINTS`. Without a
    hook, attention skips the hook points of queries, keys and values.

    Attributes:
        token_ids: (N,), the ids of the batch's tokens.
        positions: (N,), the position of each token in its sequence.
    """

    linear: Callable[..., Array]
    unembed: Callable[..., Array]
    projection: Callable[[Array, L], Callable[[slice], Array]]  # q, k, v of h heads: (3, h, N, D)
    by_rows: Callable[..., Array] = staticmethod(by_rows)
    kv_view: type[KVView] = KVView

    def __init__(
        self, config: GPT2Config, batch: Batch, hook: Hook | None = None, rank: Rank = ALONE
    ) -> None:
        self.token_ids = batch.token_ids
        self.positions = batch.positions
        self._batch, self._rank = batch, rank
        self._hook = None if hook is None else as_chain(hook).for_layers(config.n_layer)
        self._threads = python_threads() if hook is None and rank.world_size == 1 else 1
        self._last_layer = config.n_layer - 1
        self._n_head, self._head_size = config.n_head, config.n_embd // config.n_head
        self._padded_head_size = round_up(self._head_size)
        if self._hook is not None:
            self.by_rows = lambda function, *arrays: function(*arrays)
            hooks = self._hook.hooks
            if batch.counts[1:] and any(getattr(h, "positions", None) is not None for h in hooks):
                raise InvalidArgumentError(
                    "hook selects positions of one text; run a pass for each sequence", param="hook"
                )

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Call the hook, if any, with a copy of x, overwrite x with the result, and return x."""
        if self._hook is not None:
            # Heads are padded; the hook must not see the padding.
            seen = x[..., : self._head_size] if name == "attn.z" else x
            seen[...] = self._hook(full_name(name, layer), seen.copy())
        return x

    def requested(self, x: Array, z: Array, layer: int) -> tuple[Array, Array]:
        """Return the rows of x and z (N, C) for which a transformer block computes its output.

        The last block skips tokens whose logits are not requested; all other blocks skip none.
        """
        if layer < self._last_layer:
            return x, z
        rows = self._batch.output_rows
        if self._hook is not None:
            self._hook = self._hook.for_rows(rows, len(x))
        return x[rows], z[rows]

    def attention(self, attend: Attend, x: Array, w: L, layer: int) -> Array:
        """Project x (N, C) to queries, keys and values; return the heads of z joined, (N, C).

        Keys and values are appended to the KV caches. `attend` computes z for slices of the heads
        and for blocks of queries, on several threads.
        """
        z = np.empty((x.shape[0], self._n_head, self._padded_head_size), x.dtype)
        by_head, project = z.swapaxes(0, 1), self.projection(x, w)
        attend_heads = partial(self._attend_heads, attend, project, layer, by_head)
        if self._threads == 1 or x.shape[0] <= SMALL_BATCH:
            attend_heads(slice(0, self._n_head))
        else:
            parallel_for(attend_heads, even_slices(self._n_head, 2 * self._threads), self._threads)
        return z[..., : self._head_size].reshape(x.shape)

    def _attend_heads(
        self, attend: Attend, project: Callable[[slice], Array], layer: int, z: Array, heads: slice
    ) -> None:
        """Compute attention of a slice of h heads; write the result to z (H, N, D)."""
        qkv = project(heads)
        self._append_kv(qkv, layer, heads)

        def attend_block(block: QueryBlock) -> None:
            kv = self.kv_view(block, self._batch.caches, layer, heads)
            z[heads, block.tokens] = attend(qkv[0, :, block.tokens], kv, block.mask)

        parallel_for(attend_block, self._batch.query_blocks, self._threads)

    def _append_kv(self, qkv: Array, layer: int, heads: slice) -> None:
        """Append the keys and values in qkv (3, h, N, D) to the KV caches.

        A hook gets each sequence's queries, keys and values (H, n, D) before.
        """
        if self._hook is not None:
            seen = qkv[..., : self._head_size]
            for part in np.split(seen, np.cumsum(self._batch.counts)[:-1], axis=2):
                for name, array in zip(("attn.q", "attn.k", "attn.v"), part, strict=True):
                    self.hook(name, array, layer)
        for write in self._batch.kv_writes:
            write.append(layer, heads, qkv[1:])


class Context(BatchContext[PackedMatrix]):
    """A pass with packed matrices."""

    linear = staticmethod(linear)
    unembed = staticmethod(unembed)

    def projection(self, x: Array, w: PackedMatrix) -> Callable[[slice], Array]:
        """Return a function that multiplies x by the panels of some heads."""
        return partial(project_heads, x, w)


class ExactKVView(KVView):
    """Keys and values, each token's with scales of its own: later tokens change no bit."""

    matmul = staticmethod(exact.matmul)
    weighted_rows = staticmethod(exact.weighted_rows)


class ExactContext(BatchContext[ExactLinear]):
    """A pass with the products of `gpt2np.kernels.exact`.

    A token's results depend only on its own text: not on the batch, the KV cache or the threads.
    """

    linear = staticmethod(exact.linear)
    unembed = staticmethod(exact.linear)
    kv_view = ExactKVView

    def projection(self, x: Array, w: ExactLinear) -> Callable[[slice], Array]:
        """Project all heads, so that x is split into slices once; return a function for some."""
        qkv = np.zeros((3, self._n_head, len(x), self._padded_head_size))
        y = exact.linear(x, w).reshape(len(x), 3, self._n_head, -1)
        qkv[..., : self._head_size] = y.transpose(1, 2, 0, 3)
        return lambda heads: qkv[:, heads]


class TensorParallelContext(Context):
    """A pass in which each rank computes some heads and some output columns, for all tokens.

    The ranks write each output, of attention or a linear layer, to one of two shared buffers in
    turn. When a rank writes to a buffer again, all ranks have reached the barrier of the output
    between, so none still reads the buffer.
    """

    def linear(
        self, x: Array, w: PackedMatrix, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Compute this rank's columns of a linear layer, wait for all ranks, return all columns."""
        n_out, (_, n_panels, _, width) = w.shape[1], w.data.shape
        y = self._rank.output(len(x), n_panels * width)  # strides as in one process
        share = self._rank.share(n_panels)
        if share.start < share.stop:
            start, stop = share.start * width, min(share.stop * width, n_out)
            y[:, start:stop] = linear(x, w.column_range(start, stop), then)
        self._rank.barrier()
        return y[:, :n_out]

    unembed = linear

    def attention(self, attend: Attend, x: Array, w: PackedMatrix, layer: int) -> Array:
        """Compute attention for this rank's heads, wait for all ranks, return all heads joined."""
        y = self._rank.output(len(x), self._n_head * self._padded_head_size)
        z = y.reshape(len(x), self._n_head, self._padded_head_size)
        heads = self._rank.share(self._n_head)
        if heads.start < heads.stop:
            self._attend_heads(attend, self.projection(x, w), layer, z.swapaxes(0, 1), heads)
        self._rank.barrier()
        return z[..., : self._head_size].reshape(x.shape)


class ContextParallelContext(Context):
    """A pass in which each rank computes some of the tokens, for all heads and columns.

    Each rank computes all heads in one call, so ranks wait only once per layer.
    """

    def _append_kv(self, qkv: Array, layer: int, heads: slice) -> None:
        """Append this rank's keys and values to the KV caches, then wait for the other ranks."""
        super()._append_kv(qkv, layer, heads)
        self._rank.barrier()
