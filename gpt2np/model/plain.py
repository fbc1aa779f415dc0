"""A simple context for the functions of `gpt2np.model.gpt2`, for reading and experiments.

`PlainContext` shows what each method of a context computes, for one text, on one thread, without a
KV cache. The contexts of `gpt2np.runtime` compute the same results up to rounding, but faster.

    >>> w = plain_weights(model)
    >>> ctx = PlainContext(ids, model.config)
    >>> logits = gpt2(ctx, w)

The functions of `gpt2np.model.gpt2` can be called one by one, too:

    >>> x = w.wte[ctx.token_ids] + w.wpe[ctx.positions]
    >>> x = transformer_block(ctx, w.blocks[0], x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gpt2np.checkpoint.config import LM_HEAD, WTE, GPT2Config
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.kernels.packed_matrix import by_rows
from gpt2np.model.context import KV
from gpt2np.model.model import GPT2
from gpt2np.model.ops import causal_mask, layer_norm
from gpt2np.model.weights import ModelWeights, arrange
from gpt2np.runtime.context import Hook, as_chain, full_name


@dataclass(frozen=True)
class PlainLinear:
    """A linear layer: weight (in, out), bias (out) or None, and the weight's name or its start."""

    weight: Array
    bias: Array | None
    name: str = ""

    def __call__(self, x: Array) -> Array:
        """Return x @ weight + bias: (N, in) → (N, out)."""
        y: Array = x @ self.weight
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class PlainLayerNorm:
    """A layer norm: weight (C), bias (C), and the name of both before the last dot."""

    weight: Array
    bias: Array
    epsilon: float
    name: str

    def __call__(self, x: Array) -> Array:
        """Return the normalized rows of x: (…, C) → (…, C). Threads share the rows."""
        normalize = partial(layer_norm, weight=self.weight, bias=self.bias, epsilon=self.epsilon)
        return by_rows(normalize, x.reshape(-1, x.shape[-1])).reshape(x.shape)


def plain_weights(model: GPT2) -> ModelWeights[PlainLinear]:
    """Return a model's weights as plain arrays, for the functions of `gpt2np.model.gpt2`."""
    return arrange_arrays(model.config, dict(model.weights))


def arrange_arrays(config: GPT2Config, arrays: Mapping[str, Array]) -> ModelWeights[PlainLinear]:
    """Arrange arrays, named as in `weight_shapes`, in the order of the pass, without a copy."""

    def linear(name: str) -> PlainLinear:
        return PlainLinear(arrays[f"{name}.weight"], arrays[f"{name}.bias"], name)

    def norm(name: str) -> PlainLayerNorm:
        weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
        return PlainLayerNorm(weight, bias, config.layer_norm_epsilon, name)

    name = LM_HEAD if LM_HEAD in arrays else WTE
    lm_head = PlainLinear(arrays[name].T, None, name)
    w = arrange(config, arrays[WTE], arrays["wpe.weight"], norm, linear, lm_head)
    blocks = [replace(b, activation=partial(by_rows, b.activation)) for b in w.blocks]
    return replace(w, blocks=blocks)


@dataclass(frozen=True)
class PlainKV:
    """Keys and values of all heads, (H, T, D) each."""

    keys: Array
    values: Array

    def scores(self, query: Array) -> Array:
        """Return query @ keysᵀ: (H, T, D) → (H, T, T)."""
        scores: Array = query @ self.keys.swapaxes(-1, -2)
        return scores

    def weighted_values(self, pattern: Array) -> Array:
        """Return pattern @ values: (H, T, T) → (H, T, D)."""
        z: Array = pattern @ self.values
        return z


class PlainContext:
    """A forward pass over one text. The result of a hook replaces the array that the hook gets."""

    def __init__(
        self, token_ids: Sequence[int], config: GPT2Config, hook: Hook | None = None
    ) -> None:
        self.token_ids = np.asarray(token_ids)
        self.positions = np.arange(len(token_ids))
        self._n_head = config.n_head
        self._hook = None if hook is None else as_chain(hook).for_layers(config.n_layer)

    def linear(
        self, x: Array, w: PlainLinear, then: Callable[[Array], Array] | None = None
    ) -> Array:
        """Return w(x), or then(w(x)) if `then` is given."""
        return then(w(x)) if then else w(x)

    def unembed(self, x: Array, w: PlainLinear) -> Array:
        """Return the logits: (N, C) → (N, V)."""
        return self.linear(x, w)

    def by_rows(self, function: Callable[..., Array], *arrays: Array) -> Array:
        """Apply the function to all rows at once."""
        return function(*arrays)

    def attention(
        self, attend: Callable[[Array, KV, BoolArray], Array], x: Array, w: PlainLinear, layer: int
    ) -> Array:
        """Compute q, k and v of all heads, then z = attend(q, kv, mask); join the heads."""
        n, c = x.shape
        q, k, v = w(x).reshape(n, 3, self._n_head, -1).transpose(1, 2, 0, 3)  # (H, N, D) each
        for name, array in (("attn.q", q), ("attn.k", k), ("attn.v", v)):
            self.hook(name, array, layer)
        z = attend(q, PlainKV(k, v), causal_mask(n, n))
        return z.swapaxes(0, 1).reshape(n, c)

    def requested(self, x: Array, z: Array, layer: int) -> tuple[Array, Array]:
        """Return x and z: the logits of all tokens are requested."""
        return x, z

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Call the hook with x, overwrite x with the result, and return x."""
        if self._hook is not None:
            x[...] = self._hook(full_name(name, layer), x.copy())
        return x
