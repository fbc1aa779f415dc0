"""Hooks: functions that read and replace arrays inside a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.context import Context, Item

Hook = Callable[[str, Array], Array]
"""A function hook(name, array) → array, called at every hook point. The result replaces the array,
and must have the array's shape. If a hook has a method `for_layers`, each pass calls the hook that
`for_layers(n_layer)` returns."""

_OUTSIDE_BLOCKS = ("embed", "ln_f", "logits")  # all other names get the prefix blocks.{i}


def resolve_hook(hook: Hook, n_layer: int) -> Hook:
    """Adapt a hook to a model's number of blocks by hook.for_layers(n_layer), if defined."""
    for_layers: Callable[[int], Hook] | None = getattr(hook, "for_layers", None)
    return for_layers(n_layer) if for_layers else hook


def after_prompt(hook: Hook) -> Hook | None:
    """Return the hook for generated tokens: hook.after_prompt() if defined, else `hook`."""
    method: Callable[[], Hook | None] | None = getattr(hook, "after_prompt", None)
    return method() if method else hook


@dataclass(frozen=True)
class Chain:
    """A hook that applies several hooks in order; made by `gpt2np.interp.chain`."""

    hooks: tuple[Hook, ...]

    def for_layers(self, n_layer: int) -> Chain:
        """Return a copy whose hooks have blocks.* expanded to blocks.0 … blocks.{n_layer - 1}.

        Raises:
            InvalidArgumentError: the model lacks a hook point.
        """
        return Chain(tuple(resolve_hook(hook, n_layer) for hook in self.hooks))

    def after_prompt(self) -> Chain:
        """Return the chain of the hooks for generated tokens, without hooks for the prompt only."""
        later = (after_prompt(hook) for hook in self.hooks)
        return Chain(tuple(hook for hook in later if hook))

    def __call__(self, name: str, array: Array) -> Array:
        """Pass the array through all hooks; return the result."""
        for hook in self.hooks:
            array = hook(name, array)
        return array


def apply_hook(hook: Hook, name: str, layer: int, array: Array) -> None:
    """Call the hook with a copy of an array, and overwrite the array with the result.

    Raises:
        InvalidArgumentError: the result does not have the array's shape.
    """
    if name not in _OUTSIDE_BLOCKS:
        name = f"blocks.{layer}.{name}"
    result = hook(name, array.copy())
    if result is None or np.shape(result) != array.shape:
        returned = "None" if result is None else f"an array of shape {np.shape(result)}"
        raise InvalidArgumentError(
            f"the hook returned {returned} at {name}; it must return an array of shape "
            f"{array.shape}"
        )
    array[...] = result


class HookedContext(Context):
    """A forward pass that calls a hook at every hook point.

    The pass runs on one thread. The hook gets whole arrays without padding, in the order of
    `gpt2np.model.hook_points.HOOK_POINTS`.
    """

    max_rows = sys.maxsize

    def __init__(self, config: GPT2Config, batch: Batch, hook: Hook) -> None:
        super().__init__(config, batch)
        self._hook = resolve_hook(hook, config.n_layer)

    def hook(self, name: str, x: Array) -> Array:
        """Call the hook with a copy of x, overwrite x with the result, and return x."""
        # Heads are padded; the hook must not see the padding.
        is_by_head = name.endswith((".q", ".k", ".v", ".z"))
        apply_hook(self._hook, name, self.layer, x[..., : self._head_size] if is_by_head else x)
        return x

    def hook_qkv(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Call the hook with the queries, keys and values (H, n, D) of each sequence in turn."""
        for tokens in self._batch.slices:
            for name, array in (("attn.q", q), ("attn.k", k), ("attn.v", v)):
                self.hook(name, array[:, tokens])
        return q, k, v

    def for_each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call function(item) for every item in order, on this thread."""
        for item in items:
            function(item)
