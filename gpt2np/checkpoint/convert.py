"""Writing of checkpoints with `transformers`' names and layout, with any dtype and shard size."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import ALIASES, CONFIG_FILE, GPT2Config
from gpt2np.checkpoint.load import Checkpoint
from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.checkpoint.safetensors_file import DTYPES, NUMPY_DTYPES, write_safetensors
from gpt2np.data.files import atomic_folder, read_json_object
from gpt2np.errors import CheckpointError, InvalidArgumentError, check_argument
from gpt2np.hub.model_files import INDEX_FILE, WEIGHTS_FILE
from gpt2np.limits import limits

ProgressCallback = Callable[[int], object]


@dataclass(frozen=True)
class ConversionReport:
    """The weight files that `convert` has written."""

    files: list[str]  # names of the weight files, without the index
    nbytes: int  # total size of the tensors in bytes
    dtype: str  # stored dtype: "float16", …
    tied: bool  # whether the unembedding equals the embedding


def convert(
    checkpoint: Checkpoint,
    target: Path,
    *,
    dtype: str | None = None,
    max_shard_size: int | None = None,
    companions: Iterable[str] = (),
    on_progress: ProgressCallback = lambda _: None,
) -> ConversionReport:
    """Write `checkpoint` to the new or empty folder `target` in the format of `transformers`.

    The folder appears when all files are written. Memory holds one chunk of a matrix at a time, or
    two copies of a matrix that must be transposed.

    Args:
        checkpoint: the model to convert.
        target: the folder to write.
        dtype: the dtype of the stored weights, a key of `DTYPES`; by default, the embedding's.
        max_shard_size: the maximum bytes of a weight file; larger tensors have files of their own.
        companions: names or patterns of further files to copy, such as the vocabulary.
        on_progress: called with the number of values written since its last call.

    Raises:
        CheckpointError: the weights do not match the config, cannot be read, or contain values too
            large for the dtype.
        InvalidArgumentError: `target` exists and is not an empty folder, or an option is invalid.
        OSError: the folder cannot be written.
    """
    check_argument(dtype in (None, *DTYPES), "dtype", dtype, f"one of {', '.join(DTYPES)}")
    is_size = max_shard_size is None or max_shard_size >= 1
    check_argument(is_size, "max_shard_size", max_shard_size, "at least 1")
    checkpoint.validate()
    with _new_folder(target) as temporary:
        dtype = dtype or next(
            name for name, stored in DTYPES.items() if stored == checkpoint.tensors[WTE].dtype
        )
        report = _write(checkpoint, temporary, dtype, max_shard_size, on_progress)
        for file in _find_companions(checkpoint.folder, companions):
            shutil.copyfile(file, temporary / file.name)
    return report


def write_checkpoint(config: GPT2Config, weights: Mapping[str, NDArray[Any]], target: Path) -> None:
    """Write a model to the new or empty folder `target` in the format of `transformers`.

    `weights` have the names of `weight_shapes`. An untied unembedding is `lm_head.weight`. The file
    has the dtype of the weights, float32 or float64. For errors, see `GPT2.save`.
    """
    dtype = str(weights[WTE].dtype)

    def read(name: str) -> Iterator[NDArray[Any]]:
        yield weights[name].reshape(-1)  # only now: packed weights are copied when they are read

    shapes = weight_shapes(config) | ({LM_HEAD: weights[WTE].shape} if LM_HEAD in weights else {})
    tensors = {_prefixed_name(name): (shape, read(name)) for name, shape in shapes.items()}
    eos_token_ids = list(config.eos_token_ids)
    entries = {
        "bos_token_id": eos_token_ids[0] if eos_token_ids else None,
        "eos_token_id": eos_token_ids[0] if len(eos_token_ids) == 1 else eos_token_ids or None,
    }
    with _new_folder(target) as temporary:
        write_safetensors(temporary / WEIGHTS_FILE, DTYPES[dtype], tensors)
        content = _config_entries(config, dtype, tied=LM_HEAD not in weights)
        _write_json(temporary / CONFIG_FILE, entries | content)


def check_new_folder(target: Path) -> None:
    """Raise InvalidArgumentError if `target` is not the name of a new or an empty folder."""
    if target in (Path(), Path("-")):
        raise InvalidArgumentError(f"{str(target)!r} is no name of a folder; name a new folder")
    resolved = target.resolve()
    is_empty_folder = resolved.is_dir() and not any(resolved.iterdir())
    if target.is_symlink() or (resolved.exists() and not is_empty_folder):
        raise InvalidArgumentError(f"{target} already exists; name a new or an empty folder")


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `target` at the end."""
    check_new_folder(target)
    with atomic_folder(target.resolve()) as temporary:
        yield temporary


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    dtype: str,
    max_shard_size: int | None,
    on_progress: ProgressCallback,
) -> ConversionReport:
    tied = checkpoint.is_tied()
    shapes = weight_shapes(checkpoint.config)
    if not tied:
        shapes[LM_HEAD] = shapes[WTE]
    itemsize = np.dtype(NUMPY_DTYPES[DTYPES[dtype]]).itemsize
    sizes = {name: math.prod(shape) * itemsize for name, shape in shapes.items()}
    shards = plan_shards(sizes, max_shard_size)
    for file, names in shards.items():
        tensors = {
            _prefixed_name(name): (shapes[name], _read_values(checkpoint, name, on_progress))
            for name in names
        }
        write_safetensors(folder / file, DTYPES[dtype], tensors)
    nbytes = sum(sizes.values())
    if len(shards) > 1:
        weight_map = {
            _prefixed_name(name): file for file, names in shards.items() for name in names
        }
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        _write_json(folder / INDEX_FILE, index)
    _write_config(checkpoint, folder, dtype, tied)
    return ConversionReport(list(shards), nbytes, dtype, tied)


def _find_companions(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files that match `patterns`; links must lead to `folder` or the Hub cache."""
    resolved = folder.resolve()
    allowed_parents = (resolved, resolved.parent.parent / "blobs")
    files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return [file for file in sorted(files) if file.resolve().parent in allowed_parents]


def plan_shards(sizes: dict[str, int], limit: int | None) -> dict[str, list[str]]:
    """Distribute tensors over weight files in order; return each file's tensor names.

    `sizes` has the tensors' bytes. A file has at most `limit` bytes, or a single larger tensor.
    """
    shards: list[list[str]] = [[]]
    shard_size = 0
    for name, size in sizes.items():
        if limit is not None and shards[-1] and shard_size + size > limit:
            shards.append([])
            shard_size = 0
        shards[-1].append(name)
        shard_size += size
    if len(shards) == 1:
        return {WEIGHTS_FILE: shards[0]}
    return {
        f"model-{number:05}-of-{len(shards):05}.safetensors": names
        for number, names in enumerate(shards, 1)
    }


def _write_config(checkpoint: Checkpoint, folder: Path, dtype: str, tied: bool) -> None:
    """Copy the source's config.json; set `dtype`, and replace aliases such as hidden_size."""
    content = read_json_object(
        checkpoint.folder / CONFIG_FILE, CheckpointError, max_bytes=limits().max_config_bytes
    )
    dropped = ("add_cross_attention", "quantization_config", *ALIASES)
    content = {name: value for name, value in content.items() if name not in dropped}
    content |= _config_entries(checkpoint.config, dtype, tied)  # but eos_token_id is copied
    if "torch_dtype" in content:  # the key before version 5 of transformers
        content["torch_dtype"] = dtype
    _write_json(folder / CONFIG_FILE, content)


def _config_entries(config: GPT2Config, dtype: str, tied: bool) -> dict[str, Any]:
    """Return the entries of a config.json that describe the weights."""
    known = asdict(config)
    del known["eos_token_ids"]
    kind = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "dtype": dtype}
    return {**known, **kind, "tie_word_embeddings": tied}


def _read_values(
    checkpoint: Checkpoint, name: str, on_progress: ProgressCallback
) -> Iterator[NDArray[Any]]:
    stored_name = WTE if name == LM_HEAD and LM_HEAD not in checkpoint.tensors else name
    for chunk in checkpoint.read_values(stored_name):
        yield chunk
        on_progress(len(chunk))


def _prefixed_name(name: str) -> str:
    return name if name == LM_HEAD else f"transformer.{name}"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
