"""One .safetensors file as arrays that are mapped, not read.

The format (huggingface/safetensors, "Format"): 8 bytes with the header's length (little-endian), a
JSON header that gives every tensor's dtype, shape and place, then the tensors' bytes. The
`safetensors` package checks a file and is asked to; but it copies every tensor into memory and its
NumPy side has no bfloat16, so the arrays themselves are made here.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpt2np.errors import CheckpointError

Array = NDArray[Any]

_STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_OTHER = "|u1"


def map_safetensors(path: Path) -> dict[str, Array]:
    """Every floating-point tensor of the file: name → read-only array in the file's own dtype.

    float32, float64 and float16 tensors are views of the mapped file, and take memory only as they
    are used. bfloat16, which NumPy lacks, is widened to float32, exactly. Tensors of other dtypes
    (the boolean masks of old checkpoints) come as raw bytes. Files of early safetensors versions,
    openai-community/gpt2's among them, start their data at odd places: such tensors are copied,
    because NumPy would otherwise copy them for every product.

    Raises:
        CheckpointError: the file is missing, truncated, or not in the safetensors format.
    """
    try:
        with path.open("rb") as file, safe_open(path, framework="numpy"):
            header_size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_size))
        data = np.memmap(path, np.uint8, mode="r")
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}); fetch or save it again"
        ) from error
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}") from error
    body = np.asarray(data)[8 + header_size :]
    header.pop("__metadata__", None)
    return {name: _array(body, entry) for name, entry in header.items()}


def _array(body: NDArray[np.uint8], entry: dict[str, Any]) -> Array:
    start, stop = entry["data_offsets"]
    stored = body[start:stop].view(_STORED_AS.get(entry["dtype"], _OTHER))
    if entry["dtype"] == "BF16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    if stored.dtype == np.uint8:
        return stored
    return (stored if stored.flags.aligned else stored.copy()).reshape(entry["shape"])
