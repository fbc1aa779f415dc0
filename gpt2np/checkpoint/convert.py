"""A checkpoint written anew: another dtype, one file or shards, GPT-2's own names and layout."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import CONFIG_FILE, OTHER_NAMES
from gpt2np.checkpoint.load import EMBEDDING, HEAD, Checkpoint, read_checkpoint, weight_shapes
from gpt2np.checkpoint.safetensors_file import DTYPES, STORED_AS, write_safetensors
from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.hub.weight_files import INDEX_FILE, WEIGHTS_FILE, shard_name

Array = NDArray[Any]
Progress = Callable[[int], object]

# What rounding to the nearest may change: half the step at 1, and half the smallest number.
_HALF_STEPS = {
    "F64": (0.0, 0.0),
    "F32": (2.0**-24, 2.0**-150),
    "F16": (2.0**-11, 2.0**-25),
    "BF16": (2.0**-8 * (1 + 2.0**-8), 2.0**-134),  # float64 is rounded twice, by way of float32
}


@dataclass(frozen=True)
class ConversionOptions:
    """How to write a checkpoint.

    Attributes:
        dtype: "float32", "float16", "bfloat16" or "float64"; None for that of the embedding.
        max_shard_size: bytes of tensors in one file, unless one tensor alone has more; None for
            one file.
        keep_head: store an unembedding that equals the embedding, too; some tools ask for it.

    Raises:
        InvalidArgumentError: an impossible dtype or size.
    """

    dtype: str | None = None
    max_shard_size: int | None = None
    keep_head: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            expected = ", ".join(DTYPES)
            raise InvalidArgumentError(f"dtype is {self.dtype!r}; it must be one of {expected}")
        if self.max_shard_size is not None and self.max_shard_size < 1:
            raise InvalidArgumentError(
                f"max_shard_size is {self.max_shard_size}; it must be above 0"
            )


@dataclass(frozen=True)
class Converted:
    """What `convert` has written.

    Attributes:
        files: the names of the weight files, without the index.
        nbytes: of all tensors together.
        dtype: in which they are stored: "float16", …
        tied: whether the unembedding is the embedding.
        largest_change: the largest |written - read| of any weight, which is from rounding.
        not_finite: the names of the weights that hold NaN or infinite numbers.
    """

    files: list[str]
    nbytes: int
    dtype: str
    tied: bool
    largest_change: float
    not_finite: list[str]


def convert(
    checkpoint: Checkpoint,
    target: Path,
    options: ConversionOptions | None = None,
    *,
    also: Iterable[str] = (),
    progress: Progress = lambda _: None,
) -> Converted:
    """Write `checkpoint` to the new folder `target` as transformers' GPT2LMHeadModel would.

    The folder appears when it is complete and was read back: every weight must be what it was,
    rounded to the dtype. One piece of a matrix is in memory at a time, or two copies of a matrix
    that must be turned.

    Args:
        also: files to copy where they exist, such as those of the vocabulary; names and patterns.
        progress: called with how many numbers were written, or read back, since the last call.

    Raises:
        CheckpointError: the weights don't fit their config, can't be read, or are too large for
            the dtype.
        InvalidArgumentError: `target` exists, and is no empty folder.
        OSError: the folder can't be written.
    """
    checkpoint.check()
    target, given = target.resolve(), target
    if given.is_symlink() or (target.exists() and not _is_empty_folder(target)):
        raise InvalidArgumentError(f"{given} exists already; name a new or an empty folder")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        converted = _write(checkpoint, temporary, options or ConversionOptions(), progress)
        for file in _companions(checkpoint.folder, also):
            shutil.copyfile(file, temporary / file.name)
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return converted


def _write(
    checkpoint: Checkpoint, folder: Path, options: ConversionOptions, progress: Progress
) -> Converted:
    """Write weights, index and config, and read them back."""
    dtype = options.dtype or _dtype_name(checkpoint.tensors[EMBEDDING].dtype)
    tied = checkpoint.is_tied()
    shapes = weight_shapes(checkpoint.config)
    if options.keep_head or not tied:
        shapes[HEAD] = shapes[EMBEDDING]
    itemsize = np.dtype(STORED_AS[DTYPES[dtype]]).itemsize
    sizes = {name: math.prod(shape) * itemsize for name, shape in shapes.items()}
    shards = plan_shards(sizes, options.max_shard_size)
    for file, names in shards.items():
        tensors = {_full_name(n): (shapes[n], _numbers(checkpoint, n, progress)) for n in names}
        write_safetensors(folder / file, DTYPES[dtype], tensors)
    if len(shards) > 1:
        _write_index(shards, sum(sizes.values()), folder)
    _write_config(checkpoint, folder, dtype, tied)
    change, not_finite = _compare(checkpoint, read_checkpoint(folder), shapes, progress)
    return Converted(list(shards), sum(sizes.values()), dtype, tied, change, not_finite)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _companions(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files that match, but for links that lead out of the folder, other than into a cache."""
    real = folder.resolve()
    homes = (real, real.parent.parent / "blobs")  # the Hugging Face cache links its files there
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return [file for file in sorted(found) if file.resolve().parent in homes]


def plan_shards(sizes: dict[str, int], limit: int | None) -> dict[str, list[str]]:
    """File → its tensors, in order: as many as `limit` bytes hold, at least one."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if limit is not None and shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {WEIGHTS_FILE: shards[0]}
    return {shard_name(number, len(shards)): names for number, names in enumerate(shards, 1)}


def _write_index(shards: dict[str, list[str]], nbytes: int, folder: Path) -> None:
    weight_map = {_full_name(name): file for file, names in shards.items() for name in names}
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": nbytes}, "weight_map": weight_map})


def _write_config(checkpoint: Checkpoint, folder: Path, dtype: str, tied: bool) -> None:
    """The source's config.json, with all that was understood of it in GPT-2's own terms."""
    content = read_json_object(
        checkpoint.folder / CONFIG_FILE, CheckpointError, max_bytes=SMALL_JSON_BYTES
    )
    understood = asdict(checkpoint.config)
    del understood["eos_token_ids"]  # stay as they are
    switched_off = ("add_cross_attention", "quantization_config", *OTHER_NAMES)
    content = {name: value for name, value in content.items() if name not in switched_off}
    content |= understood | {"tie_word_embeddings": tied}
    content |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "dtype": dtype}
    if "torch_dtype" in content:  # its name before version 5 of transformers
        content["torch_dtype"] = dtype
    _write_json(folder / CONFIG_FILE, content)


def _compare(
    source: Checkpoint, written: Checkpoint, names: Iterable[str], progress: Progress
) -> tuple[float, list[str]]:
    """The largest difference between two checkpoints, and the weights that are not all finite.

    Raises CheckpointError where they differ by more than the written dtype's rounding.
    """
    written.check()
    largest, not_finite = 0.0, []
    for name in names:
        finite = True
        pairs = zip(_numbers(source, name, progress), written.numbers(name), strict=True)
        for before, after in pairs:
            change = _change(before, after, written.tensors[name].dtype)
            if change is None:
                raise CheckpointError(f"{name} was not written as it is; is the disk damaged?")
            largest = max(largest, change)
            finite &= bool(np.isfinite(before).all())
        if not finite:
            not_finite.append(name)
    return largest, not_finite


def _change(before: Array, after: Array, dtype: str) -> float | None:
    """The largest |after - before|, None where it is more than rounding to `dtype` may change."""
    finite = np.isfinite(before)
    if not np.array_equal(before[~finite], after[~finite].astype(before.dtype), equal_nan=True):
        return None
    a, b = before[finite].astype(np.float64), after[finite].astype(np.float64)
    change = np.abs(a - b)
    relative, smallest = _HALF_STEPS[dtype]
    if not (change <= np.maximum(relative * np.abs(a), smallest)).all():
        return None
    return float(change.max(initial=0))


def _numbers(checkpoint: Checkpoint, name: str, progress: Progress) -> Iterator[Array]:
    stored = EMBEDDING if name == HEAD and HEAD not in checkpoint.tensors else name
    for piece in checkpoint.numbers(stored):
        yield piece
        progress(len(piece))


def _full_name(name: str) -> str:
    return name if name == HEAD else f"transformer.{name}"


def _dtype_name(stored_as: str) -> str:
    return next(name for name, other in DTYPES.items() if other == stored_as)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
