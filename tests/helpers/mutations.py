"""Randomly damaged checkpoints, and what safetensors reads from them."""

from __future__ import annotations

import json
import random
import re
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
    change = rng.choice(["replace", "replace", "nudge", "drop", "rename", "copy"])
    if change == "drop":
        del inner[key]
    elif change == "rename" and isinstance(inner, dict):
        inner[spoil(key, rng)] = inner.pop(key)
    elif change == "copy":  # the value of another member
        other, other_key = rng.choice(places)
        inner[key] = json.loads(json.dumps(other[other_key]))
    elif change == "nudge" and type(value) in (int, float):
        inner[key] = rng.choice([value + 1, value - 1, value * 2, value + 32, -value])
    elif change == "nudge" and isinstance(value, str):
        inner[key] = spoil(value, rng)
    else:
        inner[key] = rng.choice([*NUMBERS, *WORDS])
    return f"{change} {key}"


def json_text(content: Any, rng: random.Random) -> bytes:
    return json.dumps(content, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


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


# What the files say -------------------------------------------------------------------------


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
