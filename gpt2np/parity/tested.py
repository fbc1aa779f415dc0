"""Arrays of another engine: their files, names and shapes.

Names are those of hook points, or those of `transformers`' output: `hidden_states`, `attentions`,
`logits`, a stack or `hidden_states.3`. A prefix `prompt/` names the prompt.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.safetensors_file import NUMPY_DTYPES, read_header, read_tensors
from gpt2np.data.files import reading
from gpt2np.errors import CheckpointError, InvalidArgumentError, did_you_mean
from gpt2np.kernels.array import Array
from gpt2np.model.hook_points import get_hook_point, hook_point_names, hook_point_shape

_EXAMPLES = "; names are those of hook points, such as blocks.0.mlp.act, hidden_states or logits"


def read_tested(path: str | Path) -> dict[str, Array]:
    """Read the arrays of a .npz or .safetensors file.

    Raises:
        CheckpointError: the file is missing or damaged, or an array is not of numbers.
        InvalidArgumentError: the suffix is neither .npz nor .safetensors.
    """
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".safetensors"):
        kinds = "arrays must be in a .npz or .safetensors file, and token ids in a .json file"
        raise InvalidArgumentError(f"{path}: {kinds}")
    try:
        with reading(path, CheckpointError):
            if path.suffix.lower() != ".npz":
                tensors = read_header(path)
                for name, tensor in tensors.items():
                    if tensor.dtype not in NUMPY_DTYPES:
                        raise ValueError(f"{name} has dtype {tensor.dtype}, not floating-point")
                return {n: np.asarray(x) for n, x in read_tensors(tensors, np.float64).items()}
            with ZipFile(path), np.load(path) as arrays:
                return dict(arrays)
    except (ValueError, BadZipFile, zlib.error) as error:
        raise CheckpointError(f"cannot read the arrays in {path}: {error}") from error


def by_prompt(
    tested: Mapping[str, Any], ids: Mapping[str, list[int]], config: GPT2Config
) -> dict[str, dict[str, Array]]:
    """Return a tested engine's arrays by prompt and hook point, in gpt2np's shapes, as float64.

    Arrays without a prompt belong to the first prompt.

    Raises:
        InvalidArgumentError: a name or shape is unknown.
    """
    aliases = _aliases(config.n_layer)
    found: dict[str, dict[str, Array]] = {}
    for full_name, value in tested.items():
        prompt, slash, name = full_name.rpartition("/")
        prompt = prompt if slash else next(iter(ids))
        if prompt not in ids:
            known = ", ".join(ids)
            raise InvalidArgumentError(
                f"{full_name}: no prompt {prompt!r}; the prompts are {known}"
            )
        arrays = {name: value}
        if name in ("hidden_states", "attentions"):
            arrays = {f"{name}.{i}": array for i, array in enumerate(value)}
        for alias, array in arrays.items():
            if alias not in aliases:
                hint = did_you_mean(alias, list(aliases)) or _EXAMPLES
                raise InvalidArgumentError(f"unknown array {full_name!r}{hint}")
            point = aliases[alias]
            shaped = _shaped(full_name, np.asarray(array), point, len(ids[prompt]), config)
            found.setdefault(prompt, {})[point] = shaped
    return found


def _aliases(n_layer: int) -> dict[str, str]:
    """Map the names of a tested engine's arrays to hook points."""
    aliases = {name: name for name in hook_point_names(n_layer)}
    # transformers applies ln_f to the last hidden state
    hidden_states = ["embed", *(f"blocks.{i}.resid" for i in range(n_layer - 1)), "ln_f"]
    for i, name in enumerate(hidden_states):
        aliases[f"hidden_states.{i}"] = name
    return aliases | {f"attentions.{i}": f"blocks.{i}.attn.pattern" for i in range(n_layer)}


def _shaped(name: str, array: Array, point: str, n_tokens: int, config: GPT2Config) -> Array:
    """Return an array in the hook point's shape; axes of length 1 may be missing or added.

    For logits, the last token's row (1, V) is enough. Heads may be joined: (T, C).
    """
    if array.dtype.kind not in "fiu":
        raise InvalidArgumentError(f"{name} has dtype {array.dtype}; expected real numbers")
    shape = hook_point_shape(point, config, n_tokens)
    array = array.astype(np.float64)
    if _without_ones(array.shape) == _without_ones(shape):
        return array.reshape(shape)
    if point == "logits" and _without_ones(array.shape) == shape[1:]:
        return array.reshape(1, -1)
    is_joined = _without_ones(array.shape) == _without_ones((n_tokens, config.n_embd))
    if is_joined and get_hook_point(point).shape == "H T D":
        return array.reshape(n_tokens, config.n_head, -1).swapaxes(0, 1)
    raise InvalidArgumentError(f"{name} has shape {array.shape}; expected {shape}")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
