"""Randomly damaged checkpoints, and an independent strict reader to compare with."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from helpers.hostile_files import CONFIG, INDEX, WEIGHTS, assemble, parts

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 12, 13, 16, 24, 32, 64, 96, 1000, -1, -8, 0.5, 8.0, 1e-5, 1e400,
    float("nan"), 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, 10**30, True, False, None, "8", [], {},
)  # fmt: skip
WORDS = (
    "F32", "F16", "BF16", "F64", "I32", "I64", "U8", "BOOL", "F8_E4M3", "gpt2", "relu", "gelu",
    "gelu_new", "silu", "transformer.ln_f.bias", "ln_f.bias", "lm_head.weight", "wte.weight",
    "h.0.attn.bias", "n_head", "n_inner", "hidden_size", "", "\x00", "\ud83d", "../x.safetensors",
)  # fmt: skip

DEFAULTS = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}  # fmt: skip
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu", "swish", "tanh")
SYNONYMS = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}


def mutate(folder: Path, rng: random.Random) -> str:
    """Damage one file of a checkpoint; return a description of the damage."""
    files = [*sorted(folder.glob("*.safetensors")), folder / CONFIG, folder / INDEX]
    file = rng.choice([file for file in files if file.exists()])
    if rng.random() < 0.35:
        change = rng.choice([flip_byte, flip_early_byte, cut, insert, remove, exchange])
        file.write_bytes(change(file.read_bytes(), rng))
        return f"{change.__name__} in {file.name}"
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        done = change_json(content, rng)
        file.write_bytes(json_text(content, rng))
        return f"{done} in {file.name}"
    header, body = parts(file)
    done = rng.choice([change_json, change_json, change_tensor])(header, rng)
    file.write_bytes(assemble(json_text(header, rng), body))
    return f"{done} in {file.name}"


# Bytes ---------------------------------------------------------------------------------------


def flip_byte(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def flip_early_byte(content: bytes, rng: random.Random) -> bytes:
    """Flip a byte near the start, where the header is."""
    return flip_byte(content[:1500], rng) + content[1500:]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def insert(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + rng.randbytes(rng.choice([1, 4, 32])) + content[at:]


def remove(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + content[at + rng.choice([1, 4, 32]) :]


def exchange(content: bytes, rng: random.Random) -> bytes:
    """Exchange two byte ranges of equal length."""
    size = rng.choice([1, 4, 32])
    a, b = sorted((rng.randrange(len(content)), rng.randrange(len(content))))
    b = max(b, a + size)
    first, second = content[a : a + size], content[b : b + size]
    return content[:a] + second + content[a + size : b] + first + content[b + size :]


# JSON ----------------------------------------------------------------------------------------


def change_json(content: Any, rng: random.Random) -> str:
    """Change a random member of a JSON object in place; return a description."""
    places = [(inner, key) for inner in containers(content) for key in keys(inner)]
    inner, key = rng.choice(places)
    value = inner[key]
    change = rng.choice(["replace", "replace", "nudge", "drop", "rename", "copy", "double"])
    if change == "drop":
        del inner[key]
    elif change == "rename" and isinstance(inner, dict):
        inner[spoil(key, rng)] = inner.pop(key)
    elif change == "copy":  # the value of another member
        other, other_key = rng.choice(places)
        inner[key] = json.loads(json.dumps(other[other_key]))
    elif change == "double" and isinstance(inner, dict):
        inner[key + TWICE] = rng.choice([value, rng.choice(NUMBERS)])
    elif change == "nudge" and type(value) in (int, float):
        inner[key] = rng.choice([value + 1, value - 1, value * 2, value + 32, -value])
    elif change == "nudge" and isinstance(value, str):
        inner[key] = spoil(value, rng)
    else:
        inner[key] = rng.choice([*NUMBERS, *WORDS])
    return f"{change} {key}"


TWICE = "\x01twice"  # suffix of a duplicate key; `json_text` removes it


def json_text(content: Any, rng: random.Random) -> bytes:
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5)
    return text.replace("\\u0001twice", "").encode("utf-8", "surrogatepass")


def containers(content: Any) -> list[Any]:
    """Return all objects and lists in a JSON value, starting with the value itself."""
    found = [content]
    for inner in found:
        values = inner.values() if isinstance(inner, dict) else inner
        found += [value for value in values if isinstance(value, (dict, list))]
    return found


def keys(inner: Any) -> list[Any]:
    return list(inner) if isinstance(inner, dict) else list(range(len(inner)))


def spoil(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return rng.choice([text[:at] + "x" + text[at:], text[:at] + text[at + 1 :], rng.choice(WORDS)])


def change_tensor(header: dict[str, Any], rng: random.Random) -> str:
    """Change a tensor's entry in a header so that most of it remains consistent."""
    names = [name for name in header if name != "__metadata__"]
    name, other = rng.sample(names, 2)
    change = rng.choice(["shape", "dtype", "places", "entries", "shift", "split", "reorder"])
    if change == "shape":
        rng.shuffle(header[name]["shape"])
    elif change == "dtype":
        header[name]["dtype"] = rng.choice(["F32", "F16", "BF16", "I16", "I32", "U16"])
    elif change == "places":
        a, b = header[name], header[other]
        a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]
    elif change == "entries":
        header[name], header[other] = header[other], header[name]
    elif change == "shift":
        by = rng.choice([-4, 2, 4, 1 << 20])
        header[name]["data_offsets"] = [offset + by for offset in header[name]["data_offsets"]]
    elif change == "split":
        size = header[name]["shape"][0]
        header[name]["shape"] = rng.choice([[size], [1, size], [size, 1], [2, size // 2]])
    else:
        header[name] = header.pop(name)
    return f"{change} of {name}"


# The independent reader ----------------------------------------------------------------------


def strict_read(folder: Path, digest: Callable[[np.ndarray], str]) -> dict[str, Any]:
    """Read config and weights with safetensors' own reader and plain rules for config.json.

    Raises any exception if the checkpoint is invalid.
    """
    config = strict_config(strict_json(folder / CONFIG))
    files = [folder / WEIGHTS]
    if not files[0].exists():
        weight_map = strict_json(folder / INDEX)["weight_map"]
        files = [folder / name for name in sorted(set(weight_map.values()))]
        assert all(file.parent == folder for file in files)
    weights: dict[str, np.ndarray] = {}
    for file in files:
        new = strict_tensors(file)
        assert not new.keys() & weights.keys()
        if file.name != WEIGHTS:
            placed = {name for name, shard in weight_map.items() if shard == file.name}
            assert placed <= strict_header(file).keys()
        weights |= new
    check_shapes(config, {name: array.shape for name, array in weights.items()})
    head, wte = weights.get("lm_head.weight"), weights["wte.weight"]
    if head is not None and np.array_equal(head, wte):
        del weights["lm_head.weight"]
    return {"config": config, "weights": {name: digest(array) for name, array in weights.items()}}


MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # masks of old checkpoints, never read


def plain(name: str) -> str:
    return name.removeprefix("transformer.")


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)  # neither json nor safetensors checks
    return dict(pairs)


def strict_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes().decode(), object_pairs_hook=members)
    assert isinstance(content, dict)
    return content


def strict_config(content: dict[str, Any]) -> dict[str, Any]:
    assert content.get("model_type", "gpt2") == "gpt2"
    given = {name: content[name] for name in DEFAULTS if content.get(name) is not None}
    for synonym, name in SYNONYMS.items():
        if content.get(synonym) is not None:
            assert given.setdefault(name, content[synonym]) == content[synonym]
    for name, value in given.items():
        kind = type(DEFAULTS[name] if name != "n_inner" else 1)
        assert type(value) is kind or (kind is float and type(value) is int)
        assert kind is not int or 0 < value < 1 << 31
        assert kind is not float or 0 <= value < 1e300
    config = DEFAULTS | given
    assert config["activation_function"] in ACTIVATIONS
    assert not content.get("add_cross_attention") and not content.get("quantization_config")
    ends = content.get("eos_token_id")
    config["eos_token_ids"] = ends if isinstance(ends, list) else [] if ends is None else [ends]
    assert all(type(end) is int for end in config["eos_token_ids"])
    config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    assert config["n_embd"] % config["n_head"] == 0
    return config


def strict_header(file: Path) -> dict[str, Any]:
    size = int.from_bytes(file.read_bytes()[:8], "little")
    assert size < 10**6
    header: dict[str, Any] = json.loads(file.read_bytes()[8 : 8 + size], object_pairs_hook=members)
    return header


def strict_tensors(file: Path) -> dict[str, np.ndarray]:
    import torch
    from safetensors.torch import load_file

    floating = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    header = strict_header(file)
    tensors = {plain(name): tensor for name, tensor in load_file(file).items()}
    assert len(tensors) == len(header) - ("__metadata__" in header)
    weights = {name: t for name, t in tensors.items() if not MASK.fullmatch(name)}
    assert all(tensor.dtype in floating for tensor in weights.values())
    return {name: tensor.float().numpy() for name, tensor in weights.items()}


def check_shapes(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    c, f = config["n_embd"], config["n_inner"]
    expected: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], c),
        "wpe.weight": (config["n_positions"], c),
        "ln_f.weight": (c,),
        "ln_f.bias": (c,),
    }
    assert config["n_layer"] < 100
    for layer in range(config["n_layer"]):
        sizes = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c)}
        sizes |= {"mlp.c_fc": (c, f), "mlp.c_proj": (f, c), "ln_1": (c,), "ln_2": (c,)}
        for name, shape in sizes.items():
            expected[f"h.{layer}.{name}.weight"] = shape
            expected[f"h.{layer}.{name}.bias"] = shape[-1:]
    if "lm_head.weight" in shapes or not config["tie_word_embeddings"]:
        expected["lm_head.weight"] = expected["wte.weight"]
    assert shapes == expected
