"""The exact pass: the operations of a context with the same bits on every machine.

The pass is that of `gpt2np.model.gpt2`; products are those of `gpt2np.kernels.exact`. A token's
results depend only on its own text: not on the batch, the KV cache or the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpt2np.kernels import exact
from gpt2np.kernels.array import Array
from gpt2np.runtime.context import Context
from gpt2np.runtime.hooked_context import HookedContext
from gpt2np.runtime.kv_view import KVView


class ExactKVView(KVView):
    """Keys and values, each token's cut into slices by itself: later tokens change no bit."""

    matmul = staticmethod(exact.matmul)
    weighted_rows = staticmethod(exact.weighted_rows)


class ExactContext(Context):
    """A forward pass with exact products; the weights are `gpt2np.kernels.exact.ExactLinear`."""

    linear: Any = staticmethod(exact.linear)
    unembed: Any = staticmethod(exact.linear)
    kv_view = ExactKVView

    def project_heads(self, x: Array, w: Any, heads: slice) -> Array:  # an ExactLinear
        """Project x (N, C) to q, k and v of a slice of h heads. Returns (3, h, N, D), padded."""
        h, d, n_embd = heads.stop - heads.start, self._head_size, self._n_head * self._head_size
        qkv = np.zeros((3, h, len(x), self._padded_head_size))
        for i, array in enumerate(qkv):
            columns = slice(i * n_embd + heads.start * d, i * n_embd + heads.stop * d)
            y = exact.linear(x, w, columns=columns)
            array[..., :d] = y.reshape(-1, h, d).swapaxes(0, 1)
        return qkv


class HookedExactContext(HookedContext, ExactContext):
    """An exact pass that calls a hook at every hook point."""
