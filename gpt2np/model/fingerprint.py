"""The fingerprint of a model."""

import hashlib

import numpy as np

from gpt2np.model.model import GPT2


def model_fingerprint(model: GPT2) -> str:
    """Return a SHA-256 digest of a model's config, dtypes and all weights."""
    digest = hashlib.sha256(f"{model.config} {model.dtype}{' exact' * model.exact}".encode())
    for name, array in sorted(model.weights.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
