"""Hooks: functions that read and replace arrays inside a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.kernels.array import Array, real_array
from gpt2np.kernels.exact import ExactLinear
from gpt2np.kernels.packed_matrix import PackedMatrix
from gpt2np.runtime.batch import Batch
from gpt2np.runtime.context import BatchContext, Context, ExactContext, L

Hook = Callable[[str, Array], Array]
"""A function hook(name, array) → array, called at every hook point. The result replaces the array,
and must be real numbers in the array's shape. If a hook has a method `for_layers`, each pass calls
the hook that `for_layers(n_layer)` returns."""


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
        """Return a copy whose hooks have blocks.* expanded to blocks.0 … blocks.{n_layer - 1}."""
        return Chain(tuple(resolve_hook(hook, n_layer) for hook in self.hooks))

    def after_prompt(self) -> Chain:
        """Return the chain of the hooks for generated tokens, without hooks for the prompt only."""
        later = (after_prompt(hook) for hook in self.hooks)
        return Chain(tuple(hook for hook in later if hook))

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
    return Chain(tuple(functions))


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


def apply_hook(hook: Hook, name: str, array: Array, layer: int | None = None) -> None:
    """Call the hook with a copy of an array, and overwrite the array with the result."""
    array[...] = call_hook(hook, full_name(name, layer), array.copy())


def full_name(name: str, layer: int | None) -> str:
    """Return the name that a hook gets: blocks.{layer}.{name}, or just `name` without a layer."""
    return name if layer is None else f"blocks.{layer}.{name}"


def _selects_positions(hook: Hook) -> bool:
    """Tell whether a hook, or one of a chain, has `positions`, as those of `gpt2np.interp`."""
    if isinstance(hook, Chain):
        return any(map(_selects_positions, hook.hooks))
    return getattr(hook, "positions", None) is not None


class Hooked(BatchContext[L]):
    """A forward pass that calls a hook at every hook point.

    The hook is called on one thread, and gets whole arrays without padding, in the order of
    `gpt2np.model.hook_points.HOOK_POINTS`.
    """

    def __init__(self, config: GPT2Config, batch: Batch, hook: Hook) -> None:
        super().__init__(config, batch, threads=1)
        self._hook = resolve_hook(hook, config.n_layer)
        if len(batch.slices) > 1 and _selects_positions(self._hook):
            raise InvalidArgumentError(
                "hook selects positions of one text; run a pass for each sequence", param="hook"
            )

    def by_rows(
        self, function: Callable[..., Array], *arrays: Array, width: int | None = None
    ) -> Array:
        """Apply the function to all rows at once."""
        return function(*arrays)

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Call the hook with a copy of x, overwrite x with the result, and return x."""
        # Heads are padded; the hook must not see the padding.
        apply_hook(self._hook, name, x[..., : self._head_size] if name == "attn.z" else x, layer)
        return x

    def _append_kv(self, qkv: Array, layer: int, heads: slice) -> None:
        """Call the hook with each sequence's queries, keys and values (H, n, D); then append."""
        for tokens in self._batch.slices:
            for name, array in zip(("attn.q", "attn.k", "attn.v"), qkv, strict=True):
                self.hook(name, array[:, tokens, : self._head_size], layer)
        super()._append_kv(qkv, layer, heads)


class HookedContext(Hooked[PackedMatrix], Context):
    """A pass with packed matrices that calls a hook at every hook point."""


class HookedExactContext(Hooked[ExactLinear], ExactContext):
    """An exact pass that calls a hook at every hook point."""
