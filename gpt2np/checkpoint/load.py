"""Reading and validation of a model folder: config, tensor headers and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2np.checkpoint.config import (
    CONFIG_FILE,
    LM_HEAD,
    WTE,
    GPT2Config,
    strip_prefixes,
    weight_shapes,
)
from gpt2np.checkpoint.safetensors_file import (
    NUMPY_DTYPES,
    TensorInfo,
    read_chunks,
    read_header,
)
from gpt2np.errors import SEE_MISSING_FEATURES, CheckpointError, errors_at
from gpt2np.hub.model_files import INDEX_FILE, list_weight_files, missing_weights


@dataclass(frozen=True)
class Checkpoint:
    """A model folder's config and tensor headers, without the weights.

    `tensors` has GPT-2's names, without causal masks. If embedding and unembedding are one tensor,
    the name is `wte.weight`, even if stored as the unembedding.
    """

    folder: Path
    config: GPT2Config
    tensors: Mapping[str, TensorInfo]

    @property
    def n_parameters(self) -> int:
        """The number of stored parameters, without a tied unembedding."""
        tied = {LM_HEAD} if self.config.tie_word_embeddings else set()
        return sum(tensor.size for name, tensor in self.tensors.items() if name not in tied)

    def find_problems(self) -> list[str]:
        """Return a message for each missing or unexpected tensor and each wrong shape or dtype."""
        stored, config, problems = self.tensors, self.config, list[str]()
        n_blocks = len({name.split(".")[1] for name in stored if name.startswith("h.")})
        if n_blocks != config.n_layer:
            problems = [f"n_layer is {config.n_layer}, but {n_blocks} blocks are stored"]
        if config.n_layer > len(stored):  # n_layer = 1e9 would make a billion names
            return problems
        has_head = LM_HEAD in stored or not config.tie_word_embeddings
        expected = weight_shapes(config, head=has_head)
        problems += [f"{name} is missing" for name in expected if name not in stored]
        problems += [f"{name} is unexpected" for name in stored if name not in expected]
        dtypes = ", ".join(NUMPY_DTYPES)
        for name in [name for name in expected if name in stored]:
            tensor, shape = stored[name], expected[name]
            if tensor.dtype not in NUMPY_DTYPES:
                problems.append(f"{name} has dtype {tensor.dtype}, expected one of {dtypes}")
            elif tensor.shape != shape:
                problems.append(f"{name} has shape {tensor.shape}, expected {shape}")
        return problems

    def model_tensors(self) -> dict[str, TensorInfo]:
        """Return the tensors in the order of the pass; leave out a copy of the embedding."""
        if problems := self.find_problems():
            listed, n_more = "; ".join(problems[:6]), len(problems[6:])
            more = f"; and {n_more} more; list them with 'gpt2np info'" if n_more else ""
            text = f"the weights in {self.folder} do not match its config.json: {listed}{more}"
            raise CheckpointError(text)
        shapes = weight_shapes(self.config, head=LM_HEAD in self.tensors)
        tensors = {name: self.tensors[name] for name in shapes}
        if LM_HEAD in tensors:
            pair = read_chunks(tensors[LM_HEAD]), read_chunks(tensors[WTE])
            if all(np.array_equal(a, b) for a, b in zip(*pair, strict=True)):
                del tensors[LM_HEAD]
        return tensors


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the config of a model folder and the headers of its weight files."""
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}; to load a model by name, call gpt2np.load")
    if not (folder / CONFIG_FILE).exists():
        raise CheckpointError(
            f"{folder} is not a model folder: it has no {CONFIG_FILE}; {SEE_MISSING_FEATURES}"
        )
    config = GPT2Config.from_file(folder / CONFIG_FILE)
    files = [name for name in list_weight_files(folder) if name != INDEX_FILE]
    if not files:
        raise CheckpointError(missing_weights(folder))
    stored: dict[str, TensorInfo] = {}
    for file in files:
        stored |= read_header(folder / file)
    with errors_at(f"{folder}: "):
        names = strip_prefixes(stored)
    tensors = {name: stored[stored_name] for name, stored_name in names.items()}
    if config.tie_word_embeddings and WTE not in tensors and LM_HEAD in tensors:
        tensors[WTE] = tensors.pop(LM_HEAD)
    return Checkpoint(folder, config, tensors)
