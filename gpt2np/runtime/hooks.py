"""Hooks: functions that read and replace arrays inside a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

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

# Names that begin with one of these strings get the prefix blocks.{i}, except for ln_f.
_PER_BLOCK = ("ln_", "attn.", "mlp.", "resid")


def resolve_hook(hook: Hook, n_layer: int) -> Hook:
    """Return hook.for_layers(n_layer) if the hook has this method, else the hook."""
    for_layers: Callable[[int], Hook] | None = getattr(hook, "for_layers", None)
    return for_layers(n_layer) if for_layers else hook


class HookedContext(Context):
    """A forward pass that calls a hook at every hook point.

    The pass runs on one thread and does not split arrays, so the hook gets whole arrays in the
    order of `gpt2np.model.hooks.HOOK_POINTS`. The arrays have no padding.
    """

    max_rows = sys.maxsize

    def __init__(self, config: GPT2Config, batch: Batch, hook: Hook) -> None:
        super().__init__(config, batch)
        self._hook = resolve_hook(hook, config.n_layer)

    def hook(self, name: str, x: Array) -> Array:
        """Call the hook with a copy of x, overwrite x with the result, and return x.

        Raises:
            InvalidArgumentError: the hook's result is not an array with the shape of x.
        """
        if name.startswith(_PER_BLOCK) and name != "ln_f":
            name = f"blocks.{self.layer}.{name}"
        # Heads are padded; the hook must not see the padding.
        visible = x[..., : self._head_size] if name.endswith((".q", ".k", ".v", ".z")) else x
        result = self._hook(name, visible.copy())
        if result is None or np.shape(result) != visible.shape:
            returned = "None" if result is None else f"an array of shape {np.shape(result)}"
            raise InvalidArgumentError(
                f"the hook returned {returned} at {name}; it must return an array of shape "
                f"{visible.shape}"
            )
        visible[...] = result
        return x

    def hook_qkv(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Call the hook with the queries, keys and values (H, n, D) of each sequence in turn."""
        for tokens in self._batch.sequences:
            for name, array in (("attn.q", q), ("attn.k", k), ("attn.v", v)):
                self.hook(name, array[:, tokens])
        return q, k, v

    def for_each(self, function: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call function(item) for every item in order, on this thread."""
        for item in items:
            function(item)
