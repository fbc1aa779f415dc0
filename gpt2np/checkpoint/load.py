"""A checkpoint's weights, checked against its config before anything uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.checkpoint.config import CONFIG_FILE, GPT2Config
from gpt2np.checkpoint.names import weight_names
from gpt2np.checkpoint.safetensors_file import (
    PIECE,
    STORED_AS,
    StoredTensor,
    pieces,
    read_header,
    read_tensors,
)
from gpt2np.errors import CheckpointError
from gpt2np.hub.weight_files import INDEX_FILE, WEIGHTS_FILE, missing_weights, read_index

HEAD, EMBEDDING = "lm_head.weight", "wte.weight"
Array = NDArray[Any]

_MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_READABLE = ", ".join(STORED_AS)
_NAMED_AT_MOST = 6  # problems in one message


def weight_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Name → shape of every weight, in the order of the forward pass.

    Matrices are `[in, out]` (OpenAI's Conv1D), so that `x @ weight` applies them.
    """
    c, f = config.n_embd, config.n_inner
    norm = {"weight": (c,), "bias": (c,)}
    block = {
        **{f"ln_1.{name}": shape for name, shape in norm.items()},
        "attn.c_attn.weight": (c, 3 * c),
        "attn.c_attn.bias": (3 * c,),
        "attn.c_proj.weight": (c, c),
        "attn.c_proj.bias": (c,),
        **{f"ln_2.{name}": shape for name, shape in norm.items()},
        "mlp.c_fc.weight": (c, f),
        "mlp.c_fc.bias": (f,),
        "mlp.c_proj.weight": (f, c),
        "mlp.c_proj.bias": (c,),
    }
    return {
        EMBEDDING: (config.vocab_size, c),
        "wpe.weight": (config.n_positions, c),
        **{
            f"h.{layer}.{name}": shape
            for layer in range(config.n_layer)
            for name, shape in block.items()
        },
        **{f"ln_f.{name}": shape for name, shape in norm.items()},
    }


@dataclass(frozen=True)
class Checkpoint:
    """A model's folder, of which only the config and the weights' headers have been read.

    Attributes:
        folder: where it is.
        config: the content of its config.json.
        tensors: the stored weights by GPT-2's names, masks left out. Where only the unembedding of
            a tied pair is stored (safetensors' save_model keeps that one), it is the embedding.
        transposed: whether its matrices are stored `[out, in]` (torch.nn.Linear, as nanoGPT does)
            rather than `[in, out]`. c_attn, which is never square, tells.
    """

    folder: Path
    config: GPT2Config
    tensors: Mapping[str, StoredTensor]
    transposed: bool

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """The weights that the config asks for, in the order of the forward pass: name → shape."""
        expected = weight_shapes(self.config)
        if self.without_biases:
            expected = {name: shape for name, shape in expected.items() if not _is_bias(name)}
        if HEAD in self.tensors or not self.config.tie_word_embeddings:
            expected[HEAD] = expected[EMBEDDING]
        return expected

    @property
    def parameters(self) -> int:
        """How many numbers are stored, without an unembedding that is said to be tied."""
        tied = {HEAD} if self.config.tie_word_embeddings else set()
        return sum(t.size for name, t in self.tensors.items() if name not in tied)

    def in_order(self) -> dict[str, StoredTensor]:
        """The tensors in the order of the forward pass, what is unexpected last."""
        place = {name: number for number, name in enumerate(self.expected)}
        names = sorted(self.tensors, key=lambda name: place.get(name, len(place)))
        return {name: self.tensors[name] for name in names}

    def problems(self) -> list[str]:
        """Everything that is missing, unexpected, or of another shape or kind than expected."""
        expected = self.expected
        blocks = len({name.split(".")[1] for name in self.tensors if name.startswith("h.")})
        found = []
        if blocks != self.config.n_layer:
            found.append(f"n_layer is {self.config.n_layer}, but {blocks} blocks are stored")
        found += [f"{name} is missing" for name in expected if name not in self.tensors]
        found += [f"{name} is unexpected" for name in self.tensors if name not in expected]
        for name, shape in expected.items():
            if name in self.tensors:
                tensor = self.tensors[name]
                stored = shape[::-1] if self.transposed and name.endswith(_MATRICES) else shape
                if tensor.dtype not in STORED_AS:
                    found.append(f"{name} is stored as {tensor.dtype}, none of {_READABLE}")
                elif tensor.shape != stored:
                    found.append(f"{name} has shape {tensor.shape}, expected {stored}")
        return found

    @property
    def without_biases(self) -> bool:
        """Whether no bias at all is stored, as nanoGPT does by default; then all are 0."""
        return not any(map(_is_bias, self.tensors))

    def check(self) -> None:
        """Raises CheckpointError with `problems`, the first of them if they are many."""
        if problems := self.problems():
            rest = len(problems) - _NAMED_AT_MOST
            listed = "; ".join(problems[:_NAMED_AT_MOST])
            raise CheckpointError(
                f"the weights in {self.folder} do not fit its config.json: {listed}"
                + (f"; and {rest} more, which gpt2np info lists" if rest > 0 else "")
            )

    def numbers(self, name: str) -> Iterator[Array]:
        """A weight's numbers piece by piece, a matrix's in the order of `[in, out]`."""
        if self.without_biases and _is_bias(name):
            return iter([np.zeros(weight_shapes(self.config)[name], np.float32)])
        tensor = self.tensors[name]
        if not (self.transposed and name.endswith(_MATRICES)):
            return pieces(tensor)
        matrix = np.concatenate(list(pieces(tensor))).reshape(tensor.shape)
        numbers = matrix.T.reshape(-1)
        return (numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE))

    def is_tied(self) -> bool:
        """Whether the unembedding is the embedding; one that is stored is read to tell."""
        head = self.tensors.get(HEAD)
        return head is None or same_numbers(head, self.tensors[EMBEDDING])


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder's config and the names, shapes and places of its weights.

    Raises:
        CheckpointError: a file is missing or damaged, or the config asks for what isn't supported.
    """
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}; a model's name is for gpt2np.load")
    config = GPT2Config.from_file(folder / CONFIG_FILE)
    stored = stored_tensors(folder)
    try:
        tensors = {name: stored[other] for name, other in weight_names(stored).items()}
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    if config.n_layer > len(tensors):  # before a name is made for each weight of a billion layers
        raise CheckpointError(
            f"{folder}: n_layer is {config.n_layer} in config.json, but the weights hold only "
            f"{len(tensors)} tensors"
        )
    if config.tie_word_embeddings and EMBEDDING not in tensors and HEAD in tensors:
        tensors[EMBEDDING] = tensors.pop(HEAD)
    linear = (3 * config.n_embd, config.n_embd)
    attention = [t.shape for name, t in tensors.items() if name.endswith(_MATRICES[0])]
    return Checkpoint(folder, config, tensors, transposed=set(attention) == {linear})


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor in the folder's weight file, or in the shards that its index names.

    As in `transformers`, the one file counts where there are both, and a shard that the index
    doesn't name is another model's.

    Raises:
        CheckpointError: a file is missing or damaged, or the index and the shards contradict.
    """
    if (folder / WEIGHTS_FILE).exists():
        return read_header(folder / WEIGHTS_FILE)
    index = folder / INDEX_FILE
    if not index.exists():
        raise CheckpointError(missing_weights(folder))
    weight_map = read_index(index)
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (folder / shard).exists()]:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}, named in {INDEX_FILE}")
    names: dict[str, list[str]] = {shard: [] for shard in shards}
    for name, shard in weight_map.items():
        names[shard].append(name)
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        held = read_header(folder / shard)
        if strange := [name for name in names[shard] if name not in held]:
            raise CheckpointError(f"{index} places {strange[0]} in {shard}, which does not hold it")
        if twice := tensors.keys() & held.keys():
            raise CheckpointError(f"{folder}: {min(twice)} is in two shards, one of them {shard}")
        tensors |= held
    return tensors


def load_weights(checkpoint: Checkpoint, dtype: DTypeLike = np.float32) -> dict[str, Array]:
    """The weights by GPT-2's names, matrices `[in, out]`, in the order of the forward pass.

    Weights stored in `dtype` stay views of the mapped file; others are converted. `lm_head.weight`
    is among them only if it is stored and differs from `wte.weight`.

    Raises:
        CheckpointError: the tensors don't fit the config, or can't be read.
    """
    checkpoint.check()
    tensors = {name: checkpoint.tensors[name] for name in checkpoint.expected}
    if checkpoint.is_tied():
        tensors.pop(HEAD, None)
    weights = read_tensors(tensors, dtype)
    if checkpoint.without_biases:
        shapes = weight_shapes(checkpoint.config)
        weights |= {name: np.zeros(shapes[name], dtype) for name in shapes if _is_bias(name)}
    if checkpoint.transposed:
        return {n: w.T if n.endswith(_MATRICES) else w for n, w in weights.items()}
    return weights


def _is_bias(name: str) -> bool:
    return name.endswith(".bias")


def is_finite(tensor: StoredTensor) -> bool:
    """Whether it holds neither NaN nor infinite numbers. Reads all of them, piece by piece."""
    return all(np.isfinite(piece).all() for piece in pieces(tensor))


def same_numbers(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors hold the same numbers in the same order. Reads them piece by piece."""
    return all(np.array_equal(x, y) for x, y in zip_longest(pieces(a), pieces(b), fillvalue=()))
