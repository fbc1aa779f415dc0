"""A tape: it runs GPT-2 forward, keeps what the backward pass reads, and runs GPT-2 backward.

`gpt2np.model.gpt2` and `gpt2np.model.backward` say what each operation computes. Matrix products
and elementwise functions run on several threads. Without hooks, attention skips the keys that
follow a block of queries.

Memory: if the arrays of all blocks fit in `max_bytes`, the forward pass keeps them. Otherwise it
keeps only the output of each block, and the backward pass runs each block again: activation
checkpointing (Chen et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array, BoolArray, IntArray
from gpt2np.kernels.blas import python_threads
from gpt2np.kernels.threads import even_slices, parallel_for
from gpt2np.model import ops
from gpt2np.model.context import KV
from gpt2np.model.gpt2 import transformer_block
from gpt2np.model.plain import PlainContext, PlainKV, PlainLayerNorm, PlainLinear
from gpt2np.model.weights import BlockWeights
from gpt2np.runtime.context import Hook, as_chain, call_hook, full_name

MAX_BYTES = 1 << 30
"""Bytes of kept arrays above which the backward pass runs each block again."""

_CHUNK = 1 << 17  # values of an elementwise function at a time, so that they stay in the cache
_MAX_GROUP = 192  # products of one sum, as in a forward pass
_GEMM_ROWS = 512  # rows of a product at a time
_QUERY_BLOCK = 128
_KEPT = ("ln_1", "attn.qkv", "attn.z", "resid_mid", "ln_2", "mlp.pre", "mlp.act", "resid")


class Tape(PlainContext):
    """One forward pass over packed texts, and the operations of its backward pass.

    The gradients of the weights are added to the mapping `weight_gradients` by the weights' names;
    if it is None, they are not computed.
    """

    def __init__(
        self,
        config: GPT2Config,
        sequences: Sequence[Sequence[int] | IntArray],
        *,
        hook: Hook | None = None,
        weight_gradients: MutableMapping[str, Array] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Prepare a pass over the token ids of one or several texts.

        A hook as of `GPT2.forward` that edits an array needs a method gradient(name, d), which
        returns the gradient of the array before the edit. The method is called for the hook points
        in reverse order; for arrays with heads, once per text. The backward pass may call a hook
        again, which must then return the same array as in the forward pass.
        """
        lengths = [len(ids) for ids in sequences]
        stops = np.cumsum(lengths).tolist()
        self.token_ids: IntArray = np.concatenate([np.asarray(ids, np.int64) for ids in sequences])
        self.positions: IntArray = np.concatenate([np.arange(n) for n in lengths])
        self.weight_gradients = weight_gradients
        self._texts = [slice(stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]
        self._config = config
        self._hooks = as_chain(hook or ()).for_layers(config.n_layer).hooks
        self._saved: dict[str, Array] = {}
        self._max_bytes = max_bytes
        self._threads = python_threads()

    # --- forward ----------------------------------------------------------------------------------

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Return x as the caller's hooks edit it. Keep the array if the backward pass reads it."""
        full = full_name(name, layer)
        for hook in self._hooks:
            edited = call_hook(hook, full, x.copy())
            if not hasattr(hook, "gradient") and not np.array_equal(edited, x, equal_nan=True):
                raise InvalidArgumentError(
                    f"the hook edits {full}, but has no method gradient(name, d); use the "
                    "interventions of gpt2np.interp, or add the method"
                )
            x = edited
        if name in (*_KEPT, "embed", "ln_f"):
            self._saved[full] = x
        if name == "resid":
            size = 8 * self._config.n_embd + 2 * self._config.n_inner  # kept per token and block
            if len(x) * size * self._config.n_layer * x.itemsize > self._max_bytes:
                for kept in _KEPT[:-1]:
                    del self._saved[full_name(kept, layer)]
        return x

    def linear(
        self, x: Array, w: PlainLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Return x @ w.weight + w.bias, or `then` of it."""
        y = self._matmul(x, w.weight, w.bias)
        return then(y) if then else y

    def attention(
        self, attend: Callable[[Array, KV, BoolArray], Array], x: Array, w: PlainLinear, layer: int
    ) -> Array:
        """Compute q, k and v; then z = attend(q, kv, mask) for heads and queries of each text."""
        qkv = self._by_head(self.linear(x, w), 3)  # (3, H, N, D)
        for text in self._texts if self._hooks else ():
            for name, array in zip(("attn.q", "attn.k", "attn.v"), qkv, strict=True):
                array[:, text] = self.hook(name, array[:, text], layer)
        self._saved[full_name("attn.qkv", layer)] = qkv
        joined = np.empty_like(x)
        z = self._by_head(joined, 1)[0]  # (H, N, D)

        def attend_part(part: tuple[slice, slice]) -> None:
            q, k, v = qkv[:, part[1], part[0]]
            for queries, n_keys, mask in self._query_blocks(q.shape[1]):
                kv = PlainKV(k[:, :n_keys], v[:, :n_keys])
                z[part[1], part[0]][:, queries] = attend(q[:, queries], kv, mask)

        self._for_parts(attend_part)
        self._saved[full_name("attn.z", layer)] = joined
        return joined

    def _by_head(self, x: Array, count: int) -> Array:
        """Return a view (count, H, N, D) of rows x (N, count·C)."""
        return x.reshape(len(x), count, self._config.n_head, -1).transpose(1, 2, 0, 3)

    def _query_blocks(self, n: int) -> Iterator[tuple[slice, int, BoolArray]]:
        """Yield blocks of n queries: queries, number of keys, and mask of the last keys."""
        size = n if self._hooks else _QUERY_BLOCK
        for start in range(0, n, size):
            stop = min(n, start + size)
            yield slice(start, stop), stop, ops.causal_mask(stop - start, stop - start)

    def _for_parts(self, function: Callable[[tuple[slice, slice]], None]) -> None:
        """Call function((tokens, heads)) for each text and some or all of its heads."""
        threads = 1 if self._hooks else self._threads  # hooks see whole arrays, in order
        heads = even_slices(self._config.n_head, threads)
        parallel_for(function, [(text, part) for text in self._texts for part in heads], threads)

    # --- backward ---------------------------------------------------------------------------------

    def saved(self, name: str, layer: int | None = None) -> Array:
        """Return the array of a hook point in the forward pass; attn.z is (N, C), heads joined."""
        return self._saved[full_name(name, layer)]

    def resid_before(self, layer: int) -> Array:
        """Return the residual stream (N, C) before a block, or before ln_f for n_layer."""
        return self.saved("resid", layer - 1) if layer else self.saved("embed")

    def recompute(self, w: BlockWeights[PlainLinear]) -> None:
        """Run a block again if the forward pass did not keep the block's arrays."""
        for name in _KEPT:
            self._saved.pop(full_name(name, w.layer + 1), None)
        if full_name("ln_1", w.layer) not in self._saved:
            self._max_bytes = np.iinfo(np.int64).max  # the backward pass needs the arrays now
            transformer_block(self, w, self.resid_before(w.layer))

    def gradient(self, name: str, d: Array, layer: int | None = None) -> Array:
        """Show the gradient at a hook point; return the gradient before the caller's hooks."""
        full = full_name(name, layer)
        for hook in reversed(self._hooks):
            if hasattr(hook, "gradient"):
                d = hook.gradient(full, d)
        return d

    def cross_entropy(self, logits: Array, targets: IntArray, weight: float = 1.0) -> Array:
        """Return the losses (N,); overwrite the logits: see `ops.cross_entropy`."""

        def run(rows: slice) -> Array:
            return ops.cross_entropy(logits[rows], targets[rows], weight)

        return np.concatenate(self._map_chunks(run, logits))

    def linear_backward(self, d: Array, x: Array, w: PlainLinear) -> Array:
        """Return the gradient of x (N, in) from that of x @ w.weight + w.bias, (N, out)."""
        if self.weight_gradients is not None:
            self._add(f"{w.name}.weight", self._matmul(x.T, d))
            self._add(f"{w.name}.bias", np.sum(self._map_chunks(lambda rows: d[rows].sum(0), d), 0))
        return self._matmul(d, w.weight.T)

    def unembed_backward(self, d: Array, x: Array, w: PlainLinear) -> Array:
        """Return the gradient of x (N, C) from that of the logits (N, V)."""
        if self.weight_gradients is not None:
            self._add(w.name, self._matmul(d.T, x))
        return self._matmul(d, w.weight.T)

    def layer_norm_backward(self, d: Array, x: Array, norm: Callable[[Array], Array]) -> Array:
        """Return the gradient of x (N, C) from that of a layer norm's output."""
        assert isinstance(norm, PlainLayerNorm)
        d_x = np.empty_like(d)

        def run(rows: slice) -> list[Array]:
            d_x[rows], *sums = ops.layer_norm_backward(d[rows], x[rows], norm.weight, norm.epsilon)
            return sums

        d_weight, d_bias = np.sum(self._map_chunks(run, d), 0)
        if self.weight_gradients is not None:
            self._add(f"{norm.name}.weight", d_weight)
            self._add(f"{norm.name}.bias", d_bias)
        return d_x

    def activation_backward(self, d: Array, x: Array) -> Array:
        """Return the gradient of x (N, F) from that of activation(x). Overwrites d."""
        derivative = ops.DERIVATIVES[ops.ACTIVATIONS[self._config.activation_function]]

        def run(rows: slice) -> None:
            d[rows] *= derivative(x[rows])

        self._map_chunks(run, d)
        return d

    def attention_backward(
        self,
        attend: Callable[..., tuple[Array, Array, Array]],
        d: Array,
        w: PlainLinear,
        layer: int,
    ) -> Array:
        """Return the gradient of attention's input from that of z, (N, C) each."""
        x, qkv = self.saved("ln_1", layer), self.saved("attn.qkv", layer)
        flat = np.zeros((len(x), 3 * x.shape[1]), x.dtype)
        d_qkv, d_z = self._by_head(flat, 3), self._by_head(d, 1)[0]

        def run(part: tuple[slice, slice]) -> None:
            tokens, heads = part
            q, k, v = qkv[:, heads, tokens]
            d_q, d_k, d_v = d_qkv[:, heads, tokens]
            d_heads = d_z[heads, tokens]
            for queries, n_keys, mask in self._query_blocks(q.shape[1]):
                d_q[:, queries], more_k, more_v = attend(
                    q[:, queries], k[:, :n_keys], v[:, :n_keys], d_heads[:, queries], mask
                )
                d_k[:, :n_keys] += more_k
                d_v[:, :n_keys] += more_v
            if self._hooks:
                for name, array in zip(("attn.v", "attn.k", "attn.q"), d_qkv[::-1], strict=True):
                    array[:, tokens] = self.gradient(name, array[:, tokens], layer)

        self._for_parts(run)
        return self.linear_backward(flat, x, w)

    def add_rows(self, name: str, rows: IntArray, d: Array) -> None:
        """Add d (N, C) to the rows (N,) of the gradient of an embedding."""
        if self.weight_gradients is None:
            return
        order = np.argsort(rows, kind="stable")
        unique, starts = np.unique(rows[order], return_index=True)
        n_rows = {"wte.weight": self._config.vocab_size, "wpe.weight": self._config.n_positions}
        shape = (n_rows[name], d.shape[1])
        gradient = self.weight_gradients.setdefault(name, np.zeros(shape, d.dtype))
        gradient[unique] += np.add.reduceat(d[order], starts, 0)

    def _add(self, name: str, d: Array) -> None:
        assert self.weight_gradients is not None
        if name in self.weight_gradients:
            self.weight_gradients[name] += d
        else:
            self.weight_gradients[name] = d

    def _matmul(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        """Return x (N, k) @ w (k, m) + bias (m), in groups of k: long sums round more."""
        y = np.empty((len(x), w.shape[1]), x.dtype)
        first, *later = even_slices(len(w), max(1, -(-len(w) // _MAX_GROUP)))

        def run(rows: slice) -> None:
            np.matmul(x[rows, first], w[first], out=y[rows])
            for group in later:
                y[rows] += np.matmul(x[rows, group], w[group])
            if bias is not None:
                y[rows] += bias

        chunks = max(self._threads, -(-len(x) // _GEMM_ROWS))
        parallel_for(run, even_slices(len(x), chunks), self._threads)
        return y

    def _map_chunks(self, function: Callable[[slice], Any], x: Array) -> list[Any]:
        """Return function(rows) for chunks of the rows of x (N, m), in order."""
        chunks = even_slices(len(x), max(self._threads, x.size // _CHUNK))
        results: list[Any] = [None] * len(chunks)

        def run(i: int) -> None:
            results[i] = function(chunks[i])

        parallel_for(run, range(len(chunks)), self._threads)
        return results
