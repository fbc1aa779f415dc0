"""Prefixes: the start of many prompts, whose keys and values are computed once.

prefix = lm.prefix("The story of a king.")
for question in questions:
    print(lm.generate(question, prefix=prefix).text)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from gpt2np.checkpoint.names import weight_shapes
from gpt2np.data.files import as_path, atomic_path, check_readable
from gpt2np.errors import CheckpointError, InvalidArgumentError, counted
from gpt2np.generation.logits_processors import compute_logits
from gpt2np.model import GPT2, KVCache

__all__ = ["Prefix"]

_METADATA_KEY = "gpt2np_prefix"
_VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Prefix:
    """The common start of many prompts, computed once by `LanguageModel.prefix`.

    Threads can share a prefix.

    Attributes:
        text: the text.
        ids: the token ids.
        cache: the keys and values of all `ids`; read-only.
        model: the model that computed `cache`.
        weights_version: the version of the weights that computed `cache`.
    """

    text: str
    ids: list[int]
    cache: KVCache
    model: GPT2
    weights_version: int

    def __repr__(self) -> str:
        end = self.text if len(self.text) <= 60 else f"…{self.text[-59:]}"
        return f"<Prefix of {counted(len(self.ids), 'token')}: {end!r}>"

    def save(self, path: str | Path) -> None:
        """Write the prefix to a safetensors file, which `LanguageModel.load_prefix` reads.

        An existing file is replaced.

        Raises:
            OSError: the file can't be written; an existing file is left unchanged.
        """
        from safetensors.numpy import save

        state = self.cache.__getstate__()
        arrays = {name: np.ascontiguousarray(state[name]) for name in ("keys", "values")}
        arrays["ids"] = np.array(self.ids, np.int64)
        description = {
            "version": _VERSION,
            "text": self.text,
            "model": model_fingerprint(self.model),
        }
        with atomic_path(as_path(path)) as temporary:
            temporary.write_bytes(save(arrays, {_METADATA_KEY: json.dumps(description)}))


def compute_prefix(model: GPT2, text: str, ids: list[int]) -> Prefix:
    """Compute the keys and values of a prefix."""
    cache = model.new_cache()
    compute_logits(model, [ids], [cache], logits_indices=[])
    return Prefix(text, ids, cache, model, model.weights.version)


def read_prefix(path: Path, model: GPT2) -> Prefix:
    """Read a prefix that `Prefix.save` wrote; see `LanguageModel.load_prefix`."""
    check_readable(path, CheckpointError)
    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {})[_METADATA_KEY])
            keys, values, ids = (file.get_tensor(name) for name in ("keys", "values", "ids"))
        text, version = description["text"], description["version"]
        fingerprint = description["model"]
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or not a prefix ({error})") from error
    if version != _VERSION:
        raise CheckpointError(f"{path} is of another version of gpt2np; make the prefix again")
    if fingerprint != model_fingerprint(model):
        raise InvalidArgumentError(f"{path} was computed by another model, or with other weights")
    cache = KVCache.__new__(KVCache)
    try:
        cache.__setstate__(
            {"config": model.config, "length": len(ids), "keys": keys, "values": values}
        )
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error
    return Prefix(text, ids.tolist(), cache, model, model.weights.version)


def model_fingerprint(model: GPT2) -> str:
    """Return a SHA-256 digest of a model's config, dtype, 1-D weights and position embeddings."""
    digest = hashlib.sha256(f"{model.config} {model.dtype}{' exact' * model.exact}".encode())
    for name, shape in sorted(weight_shapes(model.config).items()):
        if len(shape) == 1 or name == "wpe.weight":
            digest.update(np.ascontiguousarray(model.weights[name]).data)
    return digest.hexdigest()
