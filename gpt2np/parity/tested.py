"""Arrays of another engine: their files, names and shapes.

Names are those of gpt2np's hook points, TransformerLens's (`blocks.3.hook_resid_post`), or those of
`transformers`' output: `hidden_states`, `attentions`, `logits`, a stack or `hidden_states.3`. A
prefix `prompt/` names the prompt.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.safetensors_file import NUMPY_DTYPES, read_header, read_tensors
from gpt2np.data.files import reading
from gpt2np.errors import CheckpointError, InvalidArgumentError, did_you_mean
from gpt2np.kernels.array import Array
from gpt2np.model.hook_points import all_names, get_hook_point, hook_point_names, hook_point_shape

_EXAMPLES = "; names are those of hook points, such as blocks.0.mlp.act, hidden_states or logits"
_RAW = re.compile(r"(?P<name>.+)\.(?P<shape>\d*(?:x\d+)*)\.f32")


def read_tested(path: str | Path) -> dict[str, Array]:
    """Read arrays from a .safetensors file, or from a .npz, .npy or .f32 file or a folder of these.

    A .npy or .f32 file has the name of its array, with `__` instead of the `/` after the prompt. A
    .f32 file contains raw little-endian float32. Its name ends with the shape, as in
    `short__logits.8x50257.f32`. The number of rows is optional: `short__logits.x50257.f32`.

    Raises:
        CheckpointError: the path has no arrays, or a file is damaged.
    """
    path = Path(path)
    try:
        with reading(path, CheckpointError):
            if path.suffix not in (".npy", ".npz", ".f32") and not path.is_dir():
                tensors = read_header(path)
                for name, tensor in tensors.items():
                    if tensor.dtype not in NUMPY_DTYPES:
                        raise ValueError(f"{name} has dtype {tensor.dtype}, not floating-point")
                stored = read_tensors(tensors, np.float64)
                arrays = {name: np.asarray(array) for name, array in stored.items()}
            else:
                inside = sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
                arrays = dict(item for file in inside for item in _load(file))
    except ValueError as error:
        raise CheckpointError(f"cannot read the arrays in {path}: {error}") from error
    if not arrays:
        raise CheckpointError(f"{path} has no arrays: .npy files, or .f32 files with a shape")
    return arrays


def _load(file: Path) -> list[tuple[str, Array]]:
    """Return the names and arrays of a .npy, .npz or .f32 file."""
    if match := _RAW.fullmatch(file.name):
        shape = tuple(int(n or -1) for n in match["shape"].split("x"))
        values = np.fromfile(file, "<f4")
        try:
            return [(match["name"].replace("__", "/"), values.reshape(shape))]
        except (ValueError, OverflowError):
            raise ValueError(f"{file.name} has {values.size} numbers") from None
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return [(file.stem.replace("__", "/"), loaded)]
        with loaded:
            return [(name, loaded[name]) for name in loaded.files]
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{file.name} is damaged, or its arrays are not of numbers") from error


def by_prompt(
    tested: Mapping[str, Any], ids: Mapping[str, list[int]], config: GPT2Config
) -> dict[str, dict[str, Array]]:
    """Return a tested engine's arrays by prompt and hook point, in gpt2np's shapes, as float64.

    Arrays without a prompt belong to the first prompt with as many tokens as the array.

    Raises:
        InvalidArgumentError: a name or shape is unknown.
    """
    aliases = _aliases(config.n_layer)
    found: dict[str, dict[str, Array]] = {}
    for full_name, value in tested.items():
        prompt, slash, name = full_name.rpartition("/")
        if slash and prompt not in ids:
            raise InvalidArgumentError(f"{full_name}: no prompt {prompt!r}; {', '.join(ids)}")
        arrays = {name: value}
        if name in ("hidden_states", "attentions"):
            arrays = {f"{name}.{i}": array for i, array in enumerate(value)}
        for point, array in arrays.items():
            if point not in aliases:
                hint = did_you_mean(point, list(aliases)) or _EXAMPLES
                raise InvalidArgumentError(f"unknown array {full_name!r}{hint}")
            for owner in [prompt] if slash else ids:
                shaped = _shaped(array, aliases[point], len(ids[owner]), config)
                if shaped is not None:
                    found.setdefault(owner, {})[aliases[point]] = shaped
                    break
            else:
                n_tokens = len(ids[prompt or next(iter(ids))])
                expected = hook_point_shape(aliases[point], config, n_tokens)
                raise InvalidArgumentError(
                    f"{full_name} has shape {np.shape(array)}; expected {expected}"
                )
    return found


def _aliases(n_layer: int) -> dict[str, str]:
    """Map the names of a tested engine's arrays to hook points."""
    names = hook_point_names(n_layer)
    aliases = {alias: name for name in names for alias in all_names(name, n_layer)}
    # transformers applies ln_f to the last hidden state
    hidden_states = ["embed", *(f"blocks.{i}.resid" for i in range(n_layer - 1)), "ln_f"]
    for i, name in enumerate(hidden_states):
        aliases[f"hidden_states.{i}"] = aliases[f"hidden_states_{i}"] = name
    for i in range(n_layer):
        aliases[f"attentions.{i}"] = aliases[f"attentions_{i}"] = f"blocks.{i}.attn.pattern"
    return aliases


def _shaped(value: Any, point: str, n_tokens: int, config: GPT2Config) -> Array | None:
    """Return an array in the hook point's shape, or None: without a batch axis, heads first.

    For logits, the last token's row (1, V) is enough. If there are as many tokens as heads, the
    first axis is taken as heads.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise InvalidArgumentError(f"{point} has dtype {array.dtype}; expected real numbers")
    shape = hook_point_shape(point, config, n_tokens)
    array = array.astype(np.float64)
    while array.ndim > 1 and array.shape[0] == 1 and array.shape != shape:
        array = array[0]
    if get_hook_point(point).shape == "H T D":
        by_token = (n_tokens, config.n_head, shape[-1])
        is_flat = array.shape == (n_tokens, config.n_embd)
        if is_flat or array.shape == by_token != shape:
            array = array.reshape(by_token).swapaxes(0, 1)
    if point == "logits" and array.shape == shape[1:]:
        return array[None]
    if array.size == math.prod(shape) and array.ndim < len(shape):
        return array.reshape(shape)  # one token or one head
    return array if array.shape == shape else None
