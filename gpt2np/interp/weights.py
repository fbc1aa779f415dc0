"""The tokens whose embeddings are nearest to that of a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.kernels.array import Array, IntArray


def nearest_tokens(embedding: Array, ids: Sequence[int], count: int) -> tuple[IntArray, Array]:
    """Return the ids of the other tokens most similar to each of `ids`, and the cosines.

    The most similar token comes first. `embedding` is (V, C). Returns two arrays (N, count).
    """
    lengths = np.sqrt(np.einsum("vc,vc->v", embedding, embedding))  # (V,)
    lengths = np.maximum(lengths, np.finfo(embedding.dtype).tiny)
    cosines = (embedding[ids] @ embedding.T) / lengths[ids][:, None] / lengths  # (N, V)
    cosines[np.arange(len(ids)), ids] = -2
    count = min(count, len(embedding) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(cosines, nearest, 1)
