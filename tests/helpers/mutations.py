"""Randomly damaged checkpoints, and what safetensors reads from them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from helpers.hostile_files import CONFIG, INDEX, WEIGHTS, assemble, parts

VALUES = (
    0, 1, 2, 3, 8, 12, 24, 1000, -1, 0.5, 1e-5, 1e400, float("nan"), 1 << 31, 1 << 63, 10**30,
    True, None, [], {}, "8", "F32", "F16", "BF16", "I64", "F8_E4M3", "relu", "gelu_new",
    "ln_f.bias", "lm_head.weight", "wte.weight", "h.0.attn.bias", "n_head", "hidden_size", "",
    "\x00", "\ud83d", "../x.safetensors",
)  # fmt: skip
WORDS = tuple(value for value in VALUES if isinstance(value, str))


def mutate(folder: Path, rng: random.Random) -> str:
    """Damage one file of a checkpoint; return a description of the damage."""
    files = [*sorted(folder.glob("*.safetensors")), folder / CONFIG, folder / INDEX]
    file = rng.choice([file for file in files if file.exists()])
    if rng.random() < 0.35:
        change = rng.choice([flip_byte, flip_early_byte, cut, insert])
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


def change_json(content: Any, rng: random.Random) -> str:
    """Change a random member of a JSON object in place; return a description."""
    found = [content]
    for inner in found:
        values = inner.values() if isinstance(inner, dict) else inner
        found += [value for value in values if isinstance(value, (dict, list))]
    keys = [list(inner) if isinstance(inner, dict) else range(len(inner)) for inner in found]
    places = [(inner, key) for inner, some in zip(found, keys, strict=True) for key in some]
    inner, key = rng.choice(places)
    change = rng.choice(["replace", "nudge", "drop", "rename", "copy"])
    if change == "drop":
        del inner[key]
    elif change == "rename" and isinstance(inner, dict):
        inner[rng.choice([key[1:], f"{key}x", *WORDS])] = inner.pop(key)
    elif change == "copy":  # the value of another member
        other, other_key = rng.choice(places)
        inner[key] = json.loads(json.dumps(other[other_key]))
    elif change == "nudge" and type(inner[key]) in (int, float):
        inner[key] = rng.choice([inner[key] + 1, inner[key] * 2, inner[key] + 32, -inner[key]])
    else:
        inner[key] = rng.choice(VALUES)
    return f"{change} {key}"


def json_text(content: Any, rng: random.Random) -> bytes:
    return json.dumps(content, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def change_tensor(header: dict[str, Any], rng: random.Random) -> str:
    """Change a tensor's entry in a header so that most of it remains consistent."""
    name, other = rng.sample([name for name in header if name != "__metadata__"], 2)
    tensor = header[name]
    change = rng.choice(["shape", "dtype", "entries", "shift", "reorder"])
    if change == "shape":
        rng.shuffle(tensor["shape"])
    elif change == "dtype":
        tensor["dtype"] = rng.choice(["F32", "F16", "BF16", "I32"])
    elif change == "entries":
        header[name], header[other] = header[other], tensor
    elif change == "shift":
        by = rng.choice([-4, 4, 1 << 20])
        tensor["data_offsets"] = [offset + by for offset in tensor["data_offsets"]]
    else:
        header[name] = header.pop(name)
    return f"{change} of {name}"


def read_with_safetensors(folder: Path) -> dict[str, np.ndarray]:
    """Read the weights with safetensors' own reader, without masks and without a tied head."""
    import torch
    from safetensors.torch import load_file

    files = [folder / WEIGHTS]
    if not files[0].exists():
        weight_map = json.loads((folder / INDEX).read_bytes())["weight_map"]
        files = [folder / name for name in sorted(set(weight_map.values()))]
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors |= load_file(file)
    plain = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert len(plain) == len(tensors)
    weights = {
        name: tensor.float().numpy() for name, tensor in plain.items() if not MASK.fullmatch(name)
    }
    if np.array_equal(weights.get("lm_head.weight", ()), weights["wte.weight"]):
        del weights["lm_head.weight"]
    return weights


MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # masks of old checkpoints, never read
