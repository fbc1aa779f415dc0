"""GPT-2's forward pass (Radford et al. 2019, section 2.3): ids → logits.

Shape letters: S sequences, N packed tokens in this step, n tokens of one sequence among them, T
tokens seen by that sequence, C channels, H heads, D head size, F MLP width, V vocabulary, R rows
that logits are asked for.

A probe is called at these points, in this order:

    embed                                             (N, C)
    blocks.i.ln_1                                     (N, C)
    blocks.i.attn.q, .k, .v                           (H, n, D)    for each sequence in turn
    blocks.i.attn.pattern                             (H, n, T)
    blocks.i.attn.z                                   (H, n, D)    the values, mixed by the pattern
    blocks.i.attn.out, blocks.i.resid_mid             (N, C)
    blocks.i.ln_2                                     (N, C)
    blocks.i.mlp.pre, blocks.i.mlp.act                (N, F)
    blocks.i.mlp.out, blocks.i.resid                  (N, C)
                                (in the last block, from attn.out on, R rows instead of N)
    ln_f                                              (R, C)
    logits                                            (R, V)

Print the shape of every attention pattern, then silence head 2 of block 3:

    def look(name, array):
        if name.endswith("attn.pattern"):
            print(name, array.shape)
        return array

    def ablate(name, array):
        if name == "blocks.3.attn.z":
            array[2] = 0
        return array

    model.forward([ids], probe=look)
    model.forward([ids], probe=ablate)

Continue ids greedily with a cache, so that each step computes one token:

    cache = model.new_cache()
    logits = model.forward([ids], [cache])
    for _ in range(20):
        ids.append(int(logits[-1].argmax()))
        logits = model.forward([ids[-1:]], [cache])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.model.activations import ACTIVATIONS
from gpt2np.model.cache import KVCache
from gpt2np.model.checkpoint import load_weights, read_checkpoint
from gpt2np.model.config import GPT2Config
from gpt2np.model.functions import (
    attention_pattern,
    causal_attention,
    layer_norm,
    linear,
    merge_heads,
    split_heads,
)

Array = NDArray[Any]
Probe = Callable[[str, Array], Array]
"""Called as probe(name, array) at every named point; what it returns, an array of the same shape,
takes the array's place."""


class GPT2:
    """GPT-2's weights and the function from ids to logits.

    Attributes:
        config: the architecture.
        weights: name → array, see `gpt2np.model.checkpoint.weight_shapes`.
    """

    def __init__(self, config: GPT2Config, weights: dict[str, Array]) -> None:
        self.config = config
        self.weights = weights
        self._activation = ACTIVATIONS[config.activation_function]
        self._unembedding: Array = weights.get("lm_head.weight", weights["wte.weight"]).T  # (C, V)

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: DTypeLike = np.float32) -> GPT2:
        """Load `config.json` and the weights beside it, to compute in float32 or float64.

        Raises:
            CheckpointError: the files are missing, damaged, or don't fit each other.
            InvalidArgumentError: another dtype.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise InvalidArgumentError(f"dtype is {dtype!r}; it must be float32 or float64")
        checkpoint = read_checkpoint(Path(folder))
        return cls(checkpoint.config, load_weights(checkpoint, dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights and of all that is computed with them."""
        return self.weights["wte.weight"].dtype

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.config, self.dtype)

    def forward(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        rows: ArrayLike | None = None,
        probe: Probe | None = None,
    ) -> Array:
        """Logits (R, V) for what follows each of the chosen R of N tokens.

        The module's docstring, `help(gpt2np.model.gpt2)`, has the probe's points and examples.

        Args:
            sequences: the new ids of each of S sequences, as in [[5, 6, 7], [8]], together N.
            caches: what each sequence has seen before, one KVCache each; they grow by the new
                tokens. Without them every sequence starts here.
            rows: which of the N packed tokens, counted over all sequences, to give logits for; all
                by default. `last_rows(sequences)` are those that generation needs.
            probe: called as probe(name, array) with every inner array; what it returns, the array
                or another of its shape, takes the array's place.

        Raises:
            ContextLengthError: a sequence would have more than n_positions tokens.
            InvalidArgumentError: an impossible id, row, sequence, cache, or result of the probe.
        """
        new = [_whole_numbers(ids, "each sequence, as in [[5, 6, 7]],") for ids in sequences]
        caches = self._checked_caches(caches, new)
        chosen = _chosen_rows(rows, sum(map(len, new)))  # (R,)
        probe = _checked(probe) if probe else None
        at, w = probe or _unchanged, self.weights

        places = [c.length + np.arange(len(ids)) for ids, c in zip(new, caches, strict=True)]
        x = w["wte.weight"][np.concatenate(new)] + w["wpe.weight"][np.concatenate(places)]
        x = at("embed", x)  # (N, C)
        lengths = [len(ids) for ids in new]
        for layer in range(self.config.n_layer):
            go_on = chosen if layer == self.config.n_layer - 1 else slice(None)
            x = self._block(layer, x, lengths, caches, go_on, probe)  # (N, C), at last (R, C)
        for ids, cache in zip(new, caches, strict=True):
            cache.advance(len(ids))
        x = at("ln_f", self._layer_norm("ln_f", x))  # (R, C)
        return at("logits", np.dot(x, self._unembedding))  # (R, V)

    def _block(
        self,
        layer: int,
        x: Array,
        lengths: Sequence[int],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64] | slice,
        probe: Probe | None,
    ) -> Array:
        """One transformer block, pre-LN: the residual stream x (N, C) → (R, C).

        `rows` are the tokens that go on after attention; all of them, but in the last block.
        """
        at, name, w = probe or _unchanged, f"blocks.{layer}", f"h.{layer}"
        h = at(f"{name}.ln_1", self._layer_norm(f"{w}.ln_1", x))
        qkv = self._linear(f"{w}.attn.c_attn", h)  # (N, 3C)
        z = np.empty_like(x)  # (N, C)
        start = 0
        for n, cache in zip(lengths, caches, strict=True):
            stop = start + n
            z[start:stop] = self._attention(layer, qkv[start:stop], cache, probe)
            start = stop
        x, z = x[rows], z[rows]  # what the others would become, nobody asks for
        h = at(f"{name}.attn.out", self._linear(f"{w}.attn.c_proj", z))
        x = at(f"{name}.resid_mid", x + h)
        h = at(f"{name}.ln_2", self._layer_norm(f"{w}.ln_2", x))
        h = at(f"{name}.mlp.pre", self._linear(f"{w}.mlp.c_fc", h))  # (N, F)
        h = at(f"{name}.mlp.act", self._activation(h))
        h = at(f"{name}.mlp.out", self._linear(f"{w}.mlp.c_proj", h))  # (N, C)
        return at(f"{name}.resid", x + h)

    def _attention(self, layer: int, qkv: Array, cache: KVCache, probe: Probe | None) -> Array:
        """All heads of one sequence: its new tokens' qkv (n, 3C) → their mixed values z (n, C)."""
        q, k, v = (split_heads(part, self.config.n_head) for part in np.split(qkv, 3, axis=1))
        if probe is None:
            keys, values = cache.extend(layer, k, v)  # (H, T, D)
            return merge_heads(causal_attention(q, keys, values, self._scale(layer)))
        name = f"blocks.{layer}.attn"
        q, k, v = probe(f"{name}.q", q), probe(f"{name}.k", k), probe(f"{name}.v", v)
        keys, values = cache.extend(layer, k, v)
        pattern = attention_pattern(q, keys, self._scale(layer))  # (H, n, T), whole to be seen
        return merge_heads(probe(f"{name}.z", probe(f"{name}.pattern", pattern) @ values))

    def _scale(self, layer: int) -> float:
        scale = 1.0
        if self.config.scale_attn_weights:
            scale /= math.sqrt(self.config.n_embd // self.config.n_head)
        if self.config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return scale

    def _layer_norm(self, name: str, x: Array) -> Array:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, weight, bias, self.config.layer_norm_epsilon)

    def _linear(self, name: str, x: Array) -> Array:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _checked_caches(
        self, caches: Sequence[KVCache] | None, new: Sequence[Array]
    ) -> Sequence[KVCache]:
        """The caches, new ones if there are none, if the new ids fit them and the model."""
        if not new:
            raise InvalidArgumentError("no sequences; give at least one, as in [[5, 6, 7]]")
        if isinstance(caches, KVCache):
            raise InvalidArgumentError("caches must be a list, one a sequence, as in [cache]")
        caches = [self.new_cache() for _ in new] if caches is None else caches
        if not len(new) == len(caches) == len({id(cache) for cache in caches}):
            raise InvalidArgumentError(f"{len(new)} sequences need as many caches, all different")
        for ids, cache in zip(new, caches, strict=True):
            if len(ids) == 0:
                raise InvalidArgumentError("a sequence has no ids; it needs at least one")
            if ids.min() < 0 or ids.max() >= self.config.vocab_size:
                wrong = ids[(ids < 0) | (ids >= self.config.vocab_size)][0]
                raise InvalidArgumentError(
                    f"id {wrong} is not in the model's vocabulary of {self.config.vocab_size}"
                )
            if cache.length + len(ids) > self.config.n_positions:
                raise ContextLengthError(
                    f"{cache.length + len(ids)} tokens are more than the model's context of "
                    f"{self.config.n_positions}"
                )
        return caches


def _chosen_rows(rows: ArrayLike | None, n: int) -> NDArray[np.int64]:
    if rows is None:
        return np.arange(n)
    chosen = _whole_numbers(rows, "rows")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < n:
        raise InvalidArgumentError(f"rows must be among the {n} packed tokens, 0 … {n - 1}")
    return chosen


def _whole_numbers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"{name} must be a list of whole numbers")
    return array.astype(np.int64)


def last_rows(sequences: Sequence[Sequence[int] | Array]) -> NDArray[np.int64]:
    """The packed row of each sequence's last token: lengths 3, 1, 2 → [2, 3, 5]."""
    return np.cumsum([len(ids) for ids in sequences], dtype=np.int64) - 1


def _checked(probe: Probe) -> Probe:
    """`probe`, with what it returns held to the array's shape and dtype."""

    def checked(name: str, array: Array) -> Array:
        result = probe(name, array)
        if result is None or np.shape(result) != array.shape:
            found = "None" if result is None else f"the shape {np.shape(result)}"
            raise InvalidArgumentError(
                f"the probe returned {found} at {name}, where it must be {array.shape}"
            )
        return np.asarray(result, array.dtype)

    return checked


def _unchanged(name: str, array: Array) -> Array:
    return array
