"""The exact pass: the operations of a context with the same bits on every machine.

The pass is that of `gpt2np.model.gpt2`; products are those of `gpt2np.kernels.exact`. A token's
results depend only on its own text: not on the batch, the KV cache or the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpt2np.kernels import exact
from gpt2np.kernels.array import Array
from gpt2np.runtime.context import Attend, Context, KVView
from gpt2np.runtime.hooked_context import HookedContext


class ExactKVView(KVView):
    """Keys and values, each token's with scales of its own: later tokens change no bit."""

    matmul = staticmethod(exact.matmul)
    weighted_rows = staticmethod(exact.weighted_rows)


class ExactContext(Context):
    """A forward pass with exact products; the weights are `gpt2np.kernels.exact.ExactLinear`."""

    linear: Any = staticmethod(exact.linear)
    unembed: Any = staticmethod(exact.linear)
    kv_view = ExactKVView

    def attention(self, attend: Attend, x: Array, w: Any, layer: int) -> Array:
        """Project all heads at once, so that x is split into slices once; then as `Context`."""
        qkv: Any = np.zeros((3, self._n_head, len(x), self._padded_head_size))
        y = exact.linear(x, w).reshape(len(x), 3, self._n_head, -1)
        qkv[..., : self._head_size] = y.transpose(1, 2, 0, 3)
        return super().attention(attend, x, qkv, layer)

    def project_heads(self, x: Array, w: Any, heads: slice) -> Array:
        """Return the q, k and v of a slice of h heads, of all heads w: (3, h, N, D), padded."""
        qkv: Array = w[:, heads]
        return qkv


class HookedExactContext(HookedContext, ExactContext):
    """An exact pass that calls a hook at every hook point."""
