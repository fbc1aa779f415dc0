"""A checkpoint's weights, checked against its config before anything uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpt2np.errors import CheckpointError
from gpt2np.model.config import GPT2Config
from gpt2np.model.safetensors_file import map_safetensors

WEIGHTS_FILE = "model.safetensors"
Array = NDArray[Any]

_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers that old checkpoints carry
_NAMED_AT_MOST = 6  # tensors listed in one message


def weight_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Name → shape of every weight, in the order of the forward pass.

    Matrices are stored `[in, out]` (OpenAI's Conv1D), so that `x @ weight` applies them.
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
        "wte.weight": (config.vocab_size, c),
        "wpe.weight": (config.n_positions, c),
        **{
            f"h.{layer}.{name}": shape
            for layer in range(config.n_layer)
            for name, shape in block.items()
        },
        **{f"ln_f.{name}": shape for name, shape in norm.items()},
    }


def load_weights(
    folder: Path, config: GPT2Config, dtype: DTypeLike = np.float32
) -> dict[str, Array]:
    """The weights in `folder`, by GPT-2's names without the `transformer.` prefix.

    Weights stored in `dtype` stay views of the mapped file; others are converted. `lm_head.weight`
    is among them only if it is stored and differs from `wte.weight`.

    Raises:
        CheckpointError: no safetensors file, a damaged one, or tensors that don't fit the config.
    """
    path = folder / WEIGHTS_FILE
    if not path.exists():
        raise CheckpointError(_missing_file(folder))
    tensors: dict[str, Array] = {}
    for stored_name, array in map_safetensors(path).items():
        name = stored_name.removeprefix("transformer.")
        if name in tensors:
            raise CheckpointError(f"{path} holds {name} twice, with and without a prefix")
        if not _CAUSAL_MASK.fullmatch(name):
            tensors[name] = array
    expected = weight_shapes(config)
    if "lm_head.weight" in tensors or not config.tie_word_embeddings:
        expected["lm_head.weight"] = expected["wte.weight"]
    _check_shapes(tensors, expected, path)
    weights = {name: np.asarray(tensors[name], dtype) for name in expected}
    head = weights.get("lm_head.weight")
    if head is not None and np.array_equal(head, weights["wte.weight"]):
        del weights["lm_head.weight"]
    return weights


def _check_shapes(
    tensors: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is unexpected" for name in tensors if name not in expected]
    for name, shape in expected.items():
        if name in tensors:
            found = tensors[name]
            if found.dtype == np.uint8:
                problems.append(f"{name} is not stored as floating-point numbers")
            elif found.shape != shape:
                problems.append(f"{name} has shape {found.shape}, expected {shape}")
    if problems:
        rest = len(problems) - _NAMED_AT_MOST
        more = f"; and {rest} more" if rest > 0 else ""
        listed = "; ".join(problems[:_NAMED_AT_MOST])
        raise CheckpointError(f"{path} does not fit its config.json: {listed}{more}")


def _missing_file(folder: Path) -> str:
    pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.ckpt*")]
    if pickled:
        return (
            f"{folder} holds its weights as {pickled[0].name}, a pickle, which can run code and is "
            f"never opened; convert it with transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained('converted')"
        )
    return f"{folder} holds no {WEIGHTS_FILE}; a model's folder needs it beside config.json"
