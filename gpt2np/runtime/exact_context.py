"""The exact pass: the operations of a context with the same bits on every machine.

The pass is that of `gpt2np.model.gpt2`; products are those of `gpt2np.kernels.exact`. A token's
results depend only on its own text: not on the batch, the KV cache or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpt2np.kernels import exact
from gpt2np.kernels.array import Array
from gpt2np.kernels.exact import ExactLinear
from gpt2np.runtime.context import BatchContext, KVView
from gpt2np.runtime.hooked_context import Hooked


class ExactKVView(KVView):
    """Keys and values, each token's with scales of its own: later tokens change no bit."""

    matmul = staticmethod(exact.matmul)
    weighted_rows = staticmethod(exact.weighted_rows)


class ExactContext(BatchContext[ExactLinear]):
    """A forward pass with exact products."""

    linear = staticmethod(exact.linear)
    unembed = staticmethod(exact.linear)
    kv_view = ExactKVView

    def projection(self, x: Array, w: ExactLinear) -> Callable[[slice], Array]:
        """Project all heads, so that x is split into slices once; return a function for some."""
        qkv = np.zeros((3, self._n_head, len(x), self._padded_head_size))
        y = exact.linear(x, w).reshape(len(x), 3, self._n_head, -1)
        qkv[..., : self._head_size] = y.transpose(1, 2, 0, 3)
        return lambda heads: qkv[:, heads]


class HookedExactContext(Hooked[ExactLinear], ExactContext):
    """An exact pass that calls a hook at every hook point."""
