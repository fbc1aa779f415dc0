"""Hand-made broken checkpoints, and the error message expected for each."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np.hub.model_files import VOCABULARY_EXTRAS, VOCABULARY_FILES

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
LN_F, WTE = "transformer.ln_f.bias", "transformer.wte.weight"
C_ATTN = "transformer.h.0.attn.c_attn.weight"

EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}

SHAPE = {"vocab_size": 13, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}
"""Shape of the checkpoints to break: a few thousand bytes in all."""

Change = Callable[[Path], Any]


@dataclass(frozen=True)
class Hostile:
    """A way to break a folder.

    Attributes:
        change: function that breaks a folder.
        message: regular expression for the error message; None if the folder should load.
        base: the checkpoint to break: "float32", "float16" (sharded) or "bfloat16".
        error: name of the error's class.
        whole: whether tokenizer and generation config are loaded, too.
    """

    change: Change
    message: str | None
    base: str = "float32"
    error: str = "CheckpointError"
    whole: bool = False


# Files of bytes ------------------------------------------------------------------------------


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Split a safetensors file into the parsed header and the bytes after the header."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def assemble(header: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + body


def raw(content: bytes, file: str = WEIGHTS) -> Change:
    return lambda folder: (folder / file).write_bytes(content)


def header(change: Callable[[dict[str, Any]], Any], more: bytes = b"") -> Change:
    """Change the parsed header; append `more` to the tensors' bytes."""

    def apply(folder: Path) -> None:
        content, body = parts(folder / WEIGHTS)
        change(content)
        (folder / WEIGHTS).write_bytes(assemble(json.dumps(content).encode(), body + more))

    return apply


def entry(name: str, **values: Any) -> Change:
    """Change a tensor's entry in the header."""
    return header(lambda content: content[name].update(values))


def renamed(name: str, new: str) -> Change:
    return header(lambda content: content.update({new: content.pop(name)}))


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    """Change the tensors; the file stays well-formed."""
    from safetensors.numpy import load_file, save_file

    def apply(folder: Path) -> None:
        content = load_file(folder / WEIGHTS)
        change(content)
        save_file(content, folder / WEIGHTS)

    return apply


def with_bias(value: np.ndarray) -> Change:
    return tensors(lambda content: content.update({LN_F: value}))


# Files of JSON -------------------------------------------------------------------------------


def configured(**changes: Any) -> Change:
    return json_file(CONFIG, lambda content: content.update(changes))


def json_file(file: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return apply


def with_member(text: str, file: str = CONFIG) -> Change:
    """Insert the text of a member at the start of a JSON object."""

    def apply(folder: Path) -> None:
        (folder / file).write_text("{" + text + "," + (folder / file).read_text().strip()[1:])

    return apply


def instead_of_value(name: str, text: str) -> Change:
    """Replace a value of the config by the text of another value."""

    def apply(folder: Path) -> None:
        json_file(CONFIG, lambda content: content.pop(name, None))(folder)
        with_member(f'"{name}": {text}')(folder)

    return apply


def map_tensor(name: str, shard: Any) -> Change:
    """Map a tensor to another shard in the index."""
    return json_file(INDEX, lambda content: content["weight_map"].update({name: shard}))


# Paths that are not regular files ------------------------------------------------------------


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


class Bomb:
    """An object whose pickle creates a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("opened-a-pickle",)


PICKLE = pickle.dumps({"wte.weight": Bomb()})


def pickled(*files: str) -> Change:
    """Replace the weights by pickles."""

    def apply(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        for file in files:
            (folder / file).write_bytes(PICKLE)

    return apply


def shard_of(folder: Path, number: int = 0) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number]


def linked_elsewhere(folder: Path) -> None:
    """Link the files as in the Hugging Face cache: snapshots/…/config.json → ../../blobs/…"""
    blobs = folder.with_name(folder.name + "-blobs")
    blobs.mkdir()
    for file in list(folder.iterdir()):
        shutil.move(file, blobs / file.name)
        file.symlink_to(Path("..") / blobs.name / file.name)


def outside(shard: str) -> Change:
    """Map tensors to a matching file in another folder."""

    def apply(folder: Path) -> None:
        (folder / "sub").mkdir()
        for source in folder.glob("model-*.safetensors"):
            shutil.copy(source, folder.with_name(source.name))
            shutil.copy(source, folder / "sub")
        name = shard_of(folder).name
        json_file(
            INDEX,
            lambda content: content.update(
                weight_map={
                    tensor: shard.format(name=name, parent=folder.parent) if file == name else file
                    for tensor, file in content["weight_map"].items()
                }
            ),
        )(folder)

    return apply


# The list ------------------------------------------------------------------------------------

DAMAGED = "damaged or not a safetensors file"
NOT_JSON = r"config\.json is damaged"
NASTY = "evil\x1b[31m\nERROR\r\x07\u202e"

HAND_MADE: dict[str, Hostile] = {
    # the file as a whole, and its header; safetensors' own tests have many more cases
    "7 bytes": Hostile(raw(b"1234567"), DAMAGED),
    "only pickles": Hostile(
        pickled("pytorch_model.bin"),
        r"pytorch_model\.bin, a pickle.*save_pretrained\('converted'\)",
    ),
    "header length 2^63": Hostile(raw(assemble(b"{}", size=1 << 63)), DAMAGED),
    "header nested deeply": Hostile(raw(assemble(b"[" * 200_000)), DAMAGED),
    # shapes and dtypes
    "shape that overflows to the right size": Hostile(entry(LN_F, shape=[1 << 63, 2, 8]), DAMAGED),
    "shape of 100,000 dimensions": Hostile(entry(LN_F, shape=[8, *[1] * 100_000]), "has shape"),
    "attention swapped in all blocks": Hostile(
        header(lambda c: [c[C_ATTN.replace("0", n)].update(shape=[24, 8]) for n in ("0", "1")]),
        r"c_attn\.weight has shape \(24, 8\), expected \(8, 24\)",
    ),
    "float32 called float8": Hostile(entry(LN_F, dtype="F8_E4M3", shape=[32]), "dtype F8_E4M3"),
    "float64 beyond float32": Hostile(with_bias(np.full(8, 1e300)), None),
    # names
    "name with control characters": Hostile(
        renamed(LN_F, NASTY), r"evil\\x1b\[31m\\nERROR\\r\\x07"
    ),
    "name with control characters, twice": Hostile(
        header(lambda c: c.update({NASTY: EMPTY, f"model.{NASTY}": EMPTY})), r"evil\\x1b.* twice"
    ),
    "name of 1 MB": Hostile(renamed(LN_F, "x" * 1_000_000), "xxx"),
    # NaN and infinite weights load; the error comes with the logits
    "weights nan": Hostile(with_bias(np.full(8, np.nan, np.float32)), None),
    "weights inf": Hostile(with_bias(np.full(8, np.inf, np.float32)), None),
    # the config; tests/parity/checkpoint/test_checkpoint.py has the values of the wrong type
    "config with a BOM": Hostile(
        lambda folder: raw(b"\xef\xbb\xbf" + (folder / CONFIG).read_bytes(), CONFIG)(folder), None
    ),
    "config of 100 MB": Hostile(
        lambda folder: os.truncate(folder / CONFIG, 100 << 20), "has 104,857,600 bytes; expected at"
    ),
    "config of a billion layers": Hostile(configured(n_layer=10**9), "n_layer is 1000000000"),
    "config with a number of 5000 digits": Hostile(
        instead_of_value("n_embd", "9" * 5000), NOT_JSON
    ),
    "config with 1e400": Hostile(instead_of_value("layer_norm_epsilon", "1e400"), "epsilon is inf"),
    "activation nasty": Hostile(configured(activation_function=NASTY), r"evil\\x1b\[31m\\n"),
    "end of text a lone surrogate": Hostile(configured(eos_token_id="\ud800"), r"\\ud800"),
    # the index and the shards
    "index without a map": Hostile(raw(b"{}", INDEX), "it has no weight_map", "float16"),
    "shard a FIFO": Hostile(lambda folder: fifo(shard_of(folder)), "not a file", "float16"),
    "tensor in another shard": Hostile(
        lambda folder: map_tensor(WTE, shard_of(folder, -1).name)(folder), None, "float16"
    ),
    "shard in the parent folder": Hostile(
        outside("../{name}"), r"mapped to '\.\./model", "float16"
    ),
    "shard with an absolute path": Hostile(outside("{parent}/{name}"), "mapped to '/", "float16"),
    "shard with a drive": Hostile(outside("c:{name}"), "mapped to 'c:", "float16"),
    "all shards are linked": Hostile(linked_elsewhere, None, "float16"),
}

for _shard, _message in {
    1: "mapped to 1;",
    CONFIG: "mapped to 'config.json'",
    "a\0.safetensors": r"mapped to 'a\\x00",
}.items():
    HAND_MADE[f"shard {str(_shard)[:20]!a}"] = Hostile(map_tensor(WTE, _shard), _message, "float16")

for _file, _kinds, _error in (
    (WEIGHTS, (fifo, directory), "CheckpointError"),
    (CONFIG, (fifo, directory), "CheckpointError"),
    *((file, (fifo,), "CheckpointError") for file in (INDEX, "generation_config.json")),
    *((file, (fifo,), "TokenizerError") for file in (*VOCABULARY_FILES, *VOCABULARY_EXTRAS)),
):
    for _kind in _kinds:
        HAND_MADE[f"{_file} a {_kind.__name__}"] = Hostile(
            lambda folder, file=_file, kind=_kind: kind(folder / file),
            r"is missing, or not a file|is not a file|can(?:not|'t) read|"
            r"has no (?:model\.safetensors|vocabulary)",
            "float16" if _file == INDEX else "float32",
            error=_error,
            whole=True,
        )
