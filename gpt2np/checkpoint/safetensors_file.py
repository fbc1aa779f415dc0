"""The safetensors format: what a file holds, its tensors as arrays, and writing one.

The format (huggingface/safetensors, "Format"): 8 bytes with the header's length (little-endian), a
JSON header that gives every tensor's dtype, shape and place, then the tensors' bytes. The
`safetensors` package checks every file; but it copies tensors into memory and its NumPy side has no
bfloat16, so the arrays themselves are made here.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from gpt2np.data.files import SMALL_JSON_BYTES, reject_duplicate_keys
from gpt2np.errors import CheckpointError

Array = NDArray[Any]

STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Floating-point dtypes, by the format's names → what NumPy reads their bytes as."""

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""NumPy's and torch's names of them → the format's."""

_GIT_LFS = b"version "  # how the text begins that stands for a file in a clone without LFS
_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python's mmap does not name
PIECE = 1 << 18  # numbers that are converted at a time, so that few of them are in memory twice


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, of which only the header has been read.

    Attributes:
        path: the file.
        dtype: by the format's names: "F32", "F16", "BF16", "I64", …
        shape: its shape in the file.
        start: where its bytes begin in the file.
        nbytes: how many bytes it has.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file, by name. Nothing but the header is read.

    Raises:
        CheckpointError: the file is missing, cut off, or not in the safetensors format.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, or not a file")
        with path.open("rb") as file:
            start = file.read(8)
            if start == _GIT_LFS:
                raise CheckpointError(
                    f"{path} is a pointer of Git LFS; fetch the file: git lfs pull"
                )
            size = int.from_bytes(start, "little")
            if size > SMALL_JSON_BYTES:  # the package would read up to 100 MB
                raise _damaged(path, f"its header claims {size:,} bytes")
            with safe_open(path, framework="numpy"):  # checks shapes, sizes, that no byte is shared
                pass
            header = json.loads(file.read(size).decode(), object_pairs_hook=reject_duplicate_keys)
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}") from error
    except MemoryError as error:
        raise CheckpointError(f"can't map {path} into memory: {error}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    header.pop("__metadata__", None)
    return {name: _stored(path, 8 + size, entry) for name, entry in header.items()}


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged or not a safetensors file ({why}); delete {os.path.realpath(path)} and "
        "fetch or save it again"
    )


def _stored(path: Path, body: int, entry: dict[str, Any]) -> StoredTensor:
    start, stop = entry["data_offsets"]
    return StoredTensor(path, entry["dtype"], tuple(entry["shape"]), body + start, stop - start)


def read_tensors(tensors: Mapping[str, StoredTensor], dtype: DTypeLike) -> dict[str, Array]:
    """The tensors as read-only arrays of `dtype`, float32 or float64.

    Those stored in `dtype` are views of the mapped file, and take memory only as they are used:
    see `read_ahead` and `let_go`.
    Others are converted piece by piece, so that no more than the result is ever in memory. Files of
    early safetensors versions, openai-community/gpt2's among them, start their data at odd places:
    such tensors are copied, because NumPy would otherwise copy them for every product.

    Raises:
        CheckpointError: a file breaks off, or a number is too large for `dtype`.
    """
    paths = {tensor.path for tensor in tensors.values() if _is_view(tensor, dtype)}
    mapped = {path: _mapped(path) for path in paths}
    arrays = {}
    for name, tensor in tensors.items():
        if _is_view(tensor, dtype):
            data = mapped[tensor.path][tensor.start : tensor.start + tensor.nbytes]
            if len(data) < tensor.nbytes:  # it has changed since its header was read
                raise _damaged(tensor.path, "it breaks off")
            arrays[name] = data.view(dtype).reshape(tensor.shape)
        else:
            arrays[name] = _converted(name, tensor, dtype)
    return arrays


def _mapped(path: Path) -> Array:
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:  # a ValueError, if it has become empty
        raise CheckpointError(f"can't map {path} into memory: {error}") from error


def read_ahead(array: Array) -> None:
    """Have all of a mapped array in memory at once; page by page it would take three times as long.

    Where the system can't do that, it does nothing.
    """
    _advise(array, _POPULATE_READ)


def let_go(array: Array) -> None:
    """Give back the memory of a mapped array; who looks at it again reads the file again.

    Where the system can't do that, it does nothing; nor to an array that may have been changed.
    """
    if hasattr(mmap, "MADV_DONTNEED") and not array.flags.writeable:
        _advise(array, mmap.MADV_DONTNEED)


def _advise(array: Array, advice: int) -> None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if sys.platform != "linux" or not isinstance(mapped, mmap.mmap):
        return
    start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE  # a neighbour on the same page is read again
    with suppress(OSError):  # POPULATE_READ before Linux 5.14
        mapped.madvise(advice, first, start + array.nbytes - first)


def _is_view(tensor: StoredTensor, dtype: DTypeLike) -> bool:
    wanted = np.dtype(dtype)
    same = tensor.dtype != "BF16" and np.dtype(STORED_AS[tensor.dtype]) == wanted
    return same and tensor.size > 0 and tensor.start % wanted.alignment == 0


def _converted(name: str, tensor: StoredTensor, dtype: DTypeLike) -> Array:
    try:
        array = np.empty(tensor.size, dtype)
    except MemoryError as error:
        raise CheckpointError(f"{tensor.path}: {name} is too large: {error}") from error
    done = 0
    try:
        with np.errstate(over="raise", invalid="ignore"):  # NaN is whoever uses it's to find
            for piece in pieces(tensor):
                array[done : done + len(piece)] = piece
                done += len(piece)
    except FloatingPointError:
        raise CheckpointError(
            f"{tensor.path}: {name} holds numbers too large for {np.dtype(dtype)}"
        ) from None
    array.flags.writeable = False
    return array.reshape(tensor.shape)


def pieces(tensor: StoredTensor) -> Iterator[Array]:
    """Its numbers in the file's order, some at a time: 1-D arrays in the file's own dtype.

    bfloat16, which NumPy lacks, is widened to float32, exactly.

    Raises:
        CheckpointError: the file can't be read, or breaks off.
    """
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.start)
            left = tensor.size
            while left:
                piece = np.fromfile(file, STORED_AS[tensor.dtype], min(left, PIECE))
                if not len(piece):
                    raise _damaged(tensor.path, "it breaks off")
                left -= len(piece)
                if tensor.dtype == "BF16":
                    piece = (piece.astype(np.uint32) << 16).view(np.float32)
                yield piece
    except OSError as error:
        raise CheckpointError(f"can't read {tensor.path}: {error.strerror}") from error


def write_safetensors(
    path: Path,
    dtype: str,
    tensors: Mapping[str, tuple[tuple[int, ...], Iterable[Array]]],
) -> None:
    """Write `tensors`, name → (shape, its numbers piece by piece), in one of STORED_AS's dtypes.

    Each piece is converted and written as it comes, so that memory is needed for one piece only.

    Raises:
        CheckpointError: a number is too large for `dtype`.
        OSError: the file can't be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    stop = 0
    for name, (shape, _) in tensors.items():
        start, stop = stop, stop + math.prod(shape) * np.dtype(STORED_AS[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # so that the numbers begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name, (_, numbers) in tensors.items():
            for piece in numbers:
                file.write(_encoded(name, piece, dtype).data)


def _encoded(name: str, piece: Array, dtype: str) -> Array:
    try:
        with np.errstate(over="raise"):
            if dtype != "BF16":
                return np.ascontiguousarray(piece, STORED_AS[dtype])
            return _to_bfloat16(np.ascontiguousarray(piece, np.float32))
    except FloatingPointError:
        raise CheckpointError(
            f"{name} holds numbers too large for {dtype}; choose a wider dtype"
        ) from None


def _to_bfloat16(x: Array) -> Array:
    """The upper halves of float32 numbers, rounded to nearest, ties to even, as torch does.

    Raises FloatingPointError for a finite number that would become infinite.
    """
    bits = x.view(np.uint32)
    halves = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    halves[np.isnan(x)] = 0x7FC0
    infinite = (halves & 0x7FFF) == 0x7F80
    if np.isfinite(x[infinite]).any():
        raise FloatingPointError
    return halves
