"""Safetensors files: reading headers, mapping or converting tensors, writing files.

A file (huggingface/safetensors, "Format") begins with the header's length in 8 bytes,
little-endian. The header is JSON: every tensor's dtype, shape and byte range. The tensors' bytes
follow. The `safetensors` package validates every file. This module creates the arrays, because the
package copies tensors into memory and lacks bfloat16 for NumPy.
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from gpt2np.data.files import reading
from gpt2np.errors import CheckpointError, error_reason

NUMPY_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Maps safetensors' name of a floating-point dtype to the NumPy dtype of the stored bytes."""

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Maps the name of a floating-point dtype in NumPy and torch to the name in safetensors."""

CHUNK_SIZE = 1 << 18  # values that are converted at a time; only these are in memory twice

_GIT_LFS_MAGIC = b"version "  # a clone without LFS has a text file that begins so


@dataclass(frozen=True)
class TensorInfo:
    """The dtype, shape and location of a tensor, from the header of a safetensors file."""

    path: Path
    dtype: str  # safetensors' name of the dtype: "F32", "F16", "BF16", "I64", …
    shape: tuple[int, ...]
    offset: int  # position of the first byte in the file
    nbytes: int  # size in bytes

    @property
    def size(self) -> int:
        """Number of values in the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StoredArray:
    """A tensor that `np.asarray` reads from its file and converts to `dtype`, at each call."""

    tensor: TensorInfo
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        array, done = np.empty(self.tensor.size, dtype or self.dtype), 0
        with np.errstate(all="ignore"):  # infinity and NaN are reported with the logits
            for chunk in read_chunks(self.tensor):
                array[done : done + len(chunk)] = chunk
                done += len(chunk)
        array.flags.writeable = False
        return array.reshape(self.tensor.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read the header of a safetensors file. Returns the `TensorInfo` of each tensor by name."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, or not a file")
        with path.open("rb") as file:
            prefix = file.read(8)
            if prefix == _GIT_LFS_MAGIC:
                raise CheckpointError(
                    f"{path} is a Git LFS pointer, not the file itself; run: git lfs pull"
                )
            with safe_open(path, framework="numpy"):  # checks sizes, shapes and overlapping ranges
                pass
            size = int.from_bytes(prefix, "little")
            header = json.loads(file.read(size).decode())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error_reason(error)}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        shape = tuple(entry["shape"])
        tensors[name] = TensorInfo(path, entry["dtype"], shape, 8 + size + start, stop - start)
    return tensors


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged or not a safetensors file ({reason}); delete it, or the whole folder "
        "of a model from the Hub; then download or save it again"
    )


def read_tensors(tensors: Mapping[str, TensorInfo], dtype: DTypeLike) -> dict[str, Any]:
    """Return the tensors as read-only arrays of `dtype`, float32 or float64.

    Tensors stored in `dtype` become views of the memory-mapped file, other tensors a `StoredArray`;
    also unaligned tensors, which early versions of safetensors wrote (openai-community/gpt2): NumPy
    would copy them for every product.
    """
    target, map_file = np.dtype(dtype), cache(_map_file)
    arrays: dict[str, Any] = {}
    for name, tensor in tensors.items():
        is_aligned = tensor.size > 0 and tensor.offset % target.alignment == 0
        if is_aligned and NUMPY_DTYPES[tensor.dtype] == target.str:
            data = map_file(tensor.path)[tensor.offset : tensor.offset + tensor.nbytes]
            if len(data) < tensor.nbytes:  # the file has changed since its header was read
                raise _damaged(tensor.path, "it is truncated")
            arrays[name] = data.view(target).reshape(tensor.shape)
        else:
            arrays[name] = StoredArray(tensor, target)
    return arrays


def _map_file(path: Path) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:  # ValueError: the file has become empty
        raise CheckpointError(f"cannot map {path} into memory: {error_reason(error)}") from error


def memory_map(array: Any) -> mmap.mmap | None:
    """Return the map of the file that an array is a read-only view of, if it is one."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    return mapped if isinstance(mapped, mmap.mmap) and not array.flags.writeable else None


def release(array: NDArray[Any]) -> None:
    """Free the memory of a memory-mapped array; the next access reads the file again."""
    mapped = memory_map(array)
    if sys.platform != "linux" or mapped is None:
        return
    start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    # Other data on the first page is affected, too.
    page_start = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):  # locked memory stays
        mapped.madvise(mmap.MADV_DONTNEED, page_start, start + array.nbytes - page_start)


def read_chunks(tensor: TensorInfo) -> Iterator[NDArray[Any]]:
    """Yield a tensor's values in 1-D chunks of the stored dtype; bfloat16 as float32."""
    with reading(tensor.path, CheckpointError), tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        n_left = tensor.size
        while n_left:
            chunk = np.fromfile(file, NUMPY_DTYPES[tensor.dtype], min(n_left, CHUNK_SIZE))
            if not len(chunk):
                raise _damaged(tensor.path, "it is truncated")
            n_left -= len(chunk)
            if tensor.dtype == "BF16":
                chunk = (chunk.astype(np.uint32) << 16).view(np.float32)
            yield chunk


def write_safetensors(
    path: Path,
    dtype: str,
    tensors: Mapping[str, tuple[tuple[int, ...], Iterable[NDArray[Any]]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file, one chunk of values at a time.

    `tensors` maps each name to a shape and an iterable of the values in 1-D chunks. `dtype` is a
    key of `NUMPY_DTYPES`. The default `metadata` is what `transformers` requires.
    """
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    stop = 0
    for name, (shape, _) in tensors.items():
        start, stop = stop, stop + math.prod(shape) * np.dtype(NUMPY_DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # aligns the values
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name, (_, chunks) in tensors.items():
            for chunk in chunks:
                file.write(_encode(name, chunk, dtype).data)


def _encode(name: str, chunk: NDArray[Any], dtype: str) -> NDArray[Any]:
    try:
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            if dtype != "BF16":
                return np.ascontiguousarray(chunk, NUMPY_DTYPES[dtype])
            return _to_bfloat16(np.ascontiguousarray(chunk, np.float32))
    except FloatingPointError:
        raise CheckpointError(
            f"{name} has values too large for {dtype}; choose a wider dtype"
        ) from None


def _to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the values rounded to bfloat16; ties round to even, as in torch."""
    bits = x.view(np.uint32)
    halves: NDArray[np.uint16] = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    halves[np.isnan(x)] = 0x7FC0
    infinite = (halves & 0x7FFF) == 0x7F80
    if np.isfinite(x[infinite]).any():
        raise FloatingPointError  # as NumPy does when a finite value becomes infinite
    return halves
