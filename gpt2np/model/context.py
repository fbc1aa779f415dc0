"""The type of `ctx` in `gpt2np.model.gpt2`, whose page says what each member means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from gpt2np.kernels.array import Array, BoolArray, IntArray

LinearT = TypeVar("LinearT", contravariant=True)


class KV(Protocol):
    """The keys and values that some queries attend to."""

    def scores(self, query: Array) -> Array:
        """Return q·kᵀ: (h, n, D) → (h, n, T)."""

    def weighted_values(self, pattern: Array) -> Array:
        """Return p·v: (h, n, T) → (h, n, D)."""


class ModelContext(Protocol[LinearT]):
    """The eight members that the forward pass uses.

    `LinearT` is the type of a linear layer's weights.
    """

    token_ids: IntArray
    positions: IntArray

    def linear(
        self, x: Array, w: LinearT, then: Callable[[Array], Array] | None = None
    ) -> Array: ...

    def unembed(self, x: Array, w: LinearT) -> Array: ...

    def by_rows(self, function: Callable[..., Array], *arrays: Array) -> Array: ...

    def attention(
        self, attend: Callable[[Array, KV, BoolArray], Array], x: Array, w: LinearT, layer: int
    ) -> Array: ...

    def requested(self, x: Array, z: Array, layer: int) -> tuple[Array, Array]: ...

    def hook(self, name: str, x: Array, layer: int | None = None) -> Array: ...
