"""Hand-made broken checkpoints, and the error message expected for each."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np.limits import limits

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
LN_F, WTE, WPE = "transformer.ln_f.bias", "transformer.wte.weight", "transformer.wpe.weight"
C_ATTN, C_FC = "transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight"

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


def cut(size: int) -> Change:
    return lambda folder: os.truncate(folder / WEIGHTS, size)


def header_text(change: Callable[[bytes], bytes]) -> Change:
    """Change the text of the header's JSON."""

    def apply(folder: Path) -> None:
        header, body = parts(folder / WEIGHTS)
        (folder / WEIGHTS).write_bytes(assemble(change(json.dumps(header).encode()), body))

    return apply


def remap_tensor(old: str, new: str) -> Change:
    def change(header: bytes) -> bytes:
        assert old.encode() in header
        return header.replace(old.encode(), new.encode(), 1)

    return header_text(change)


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


def added(name: str, dtype: str = "F32", size: int = 4) -> Change:
    """Add a tensor of `size` bytes."""

    def apply(folder: Path) -> None:
        content, body = parts(folder / WEIGHTS)
        offsets = [len(body), len(body) + size]
        content[name] = {"dtype": dtype, "shape": [1] if size else [0], "data_offsets": offsets}
        (folder / WEIGHTS).write_bytes(assemble(json.dumps(content).encode(), body + bytes(size)))

    return apply


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    """Change the tensors; the file stays well-formed."""
    from safetensors.numpy import load_file, save_file

    def apply(folder: Path) -> None:
        content = load_file(folder / WEIGHTS)
        change(content)
        save_file(content, folder / WEIGHTS)

    return apply


def many_tensors(count: int, **config: Any) -> Change:
    """Add `count` empty tensors."""

    def add(content: dict[str, Any]) -> None:
        end = max(stored["data_offsets"][1] for name, stored in content.items() if name[0] != "_")
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
        content.update({f"{number:x}": empty for number in range(count)})

    return lambda folder: (header(add)(folder), configured(**config)(folder))


def swap(content: dict[str, Any], first: str, second: str, *keys: str) -> None:
    for key in keys:
        a, b = content[first][key], content[second][key]
        content[first][key], content[second][key] = b, a


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


def encoded(encoding: str) -> Change:
    def apply(folder: Path) -> None:
        text = (folder / CONFIG).read_text().replace("{", '{"author": "Zoë",', 1)
        (folder / CONFIG).write_bytes(text.encode(encoding))

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


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("nothing")


def empty(path: Path) -> None:
    path.write_bytes(b"")


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


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / WEIGHTS, "w") as archive:
        archive.writestr("archive/data.pkl", PICKLE)


def shard_of(folder: Path, number: int = 0) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number]


def on_shard(change: Callable[[Path], Any]) -> Change:
    return lambda folder: change(shard_of(folder))


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


def duplicate_tensors(folder: Path) -> None:
    """Add the first shard's tensors to the second shard, but not to the index."""
    from safetensors.numpy import load_file, save_file

    first, second = shard_of(folder, 0), shard_of(folder, 1)
    save_file(load_file(first) | load_file(second), second)


def many_shards(folder: Path) -> None:
    """Make a thousand shards, links to one file with an empty header of the maximum size."""
    content = json.dumps({"__metadata__": {"x": "y" * ALLOWED}}).encode()
    (folder / "blob").write_bytes(assemble(content))
    names = {f"t{number}": f"s{number}.safetensors" for number in range(1000)}
    for name in names.values():
        (folder / name).symlink_to("blob")
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def sparse(folder: Path) -> None:
    """Make a model of 16 gigabytes as a sparse file."""
    rows = 1 << 30
    configured(vocab_size=rows)(folder)
    content, body = parts(folder / WEIGHTS)
    start = len(body)
    content[WTE] = {"dtype": "F16", "shape": [rows, 8], "data_offsets": [start, start + 16 * rows]}
    old = {name: stored for name, stored in content.items() if name[0] != "_" and name != WTE}
    offset, new = 0, b""
    for stored in old.values():
        begin, end = stored["data_offsets"]
        new += body[begin:end]
        stored["data_offsets"] = [offset, offset + end - begin]
        offset += end - begin
    content[WTE]["data_offsets"] = [offset, offset + 16 * rows]
    whole = assemble(json.dumps(content).encode(), new)
    (folder / WEIGHTS).write_bytes(whole)
    os.truncate(folder / WEIGHTS, len(whole) + 16 * rows)


# The list ------------------------------------------------------------------------------------

DAMAGED = "damaged or not a safetensors file"
NOT_JSON = r"config\.json is damaged"
ALLOWED = limits().max_config_bytes - 200  # size of a header or config within the limit
EMPTY = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
NASTY = "evil\x1b[31m\nERROR\r\x07\u202e"

HAND_MADE: dict[str, Hostile] = {
    # the file as a whole
    "empty": Hostile(raw(b""), DAMAGED),
    "7 bytes": Hostile(raw(b"1234567"), DAMAGED),
    "8 bytes": Hostile(raw(bytes(8)), DAMAGED),
    "only a length": Hostile(cut(8), DAMAGED),
    "cut in the header": Hostile(cut(500), DAMAGED),
    "cut in the data": Hostile(cut(4000), DAMAGED),
    "bytes after the end": Hostile(header(lambda content: None, more=b"abcd"), DAMAGED),
    "pickle renamed": Hostile(raw(PICKLE), DAMAGED),
    "zip renamed": Hostile(zipped, DAMAGED),
    "only pickles": Hostile(
        pickled("pytorch_model.bin"),
        r"pytorch_model\.bin, a pickle.*save_pretrained\('converted'\)",
    ),
    "pickle with a nasty name": Hostile(pickled(f"{NASTY}.bin"), r"evil\\x1b.*, a pickle"),
    # the header
    "header length 2^63": Hostile(raw(assemble(b"{}", size=1 << 63)), "9,223,372,036,854,775,808"),
    "header length 2^64-1": Hostile(raw(assemble(b"{}", size=(1 << 64) - 1)), DAMAGED),
    "header length beyond the file": Hostile(raw(assemble(b"{}", size=1000)), DAMAGED),
    "header of 100 MB": Hostile(
        lambda folder: (
            raw(assemble(b"{}", size=100_000_000))(folder),
            os.truncate(folder / WEIGHTS, 8 + 100_000_000),
        ),
        "claims 100,000,000 bytes",
    ),
    "header not JSON": Hostile(header_text(lambda text: b"x" * len(text)), DAMAGED),
    "header cut": Hostile(header_text(lambda text: text[:-1]), DAMAGED),
    "header a list": Hostile(raw(assemble(b"[]")), DAMAGED),
    "header a number": Hostile(raw(assemble(b"1")), DAMAGED),
    "header empty": Hostile(raw(assemble(b"{}")), "only 0 tensors"),
    "header UTF-16": Hostile(header_text(lambda text: text.decode().encode("utf-16")), DAMAGED),
    "header with a BOM": Hostile(header_text(lambda text: b"\xef\xbb\xbf" + text), DAMAGED),
    "header not UTF-8": Hostile(header_text(lambda text: b'{"\xff":1,' + text[1:]), DAMAGED),
    "header nested deeply": Hostile(raw(assemble(b"[" * 200_000)), DAMAGED),
    "metadata nested deeply": Hostile(
        raw(assemble(b'{"__metadata__":' + b'{"a":' * 900 + b"1" + b"}" * 901)), DAMAGED
    ),
    "metadata not texts": Hostile(
        header(lambda content: content.update(__metadata__={"a": [1]})), DAMAGED
    ),
    "header as large as allowed of lists": Hostile(
        raw(assemble(b'{"a":[' + b"[[1]]," * (ALLOWED // 6) + b"1]}")), DAMAGED
    ),
    "header as large as allowed of objects": Hostile(
        raw(assemble(b'{"a":[' + b'{"":[1]},' * (ALLOWED // 9) + b"1]}")), DAMAGED
    ),
    "header as large as allowed of wide text": Hostile(
        raw(assemble(b'{"\xf0\x9f\xa6\x8a":"' + b"\\n" * (ALLOWED // 2) + b'"}')), DAMAGED
    ),
    "key twice": Hostile(
        remap_tensor(
            f'"{LN_F}"', f'"{LN_F}": {{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}, "{LN_F}"'
        ),
        "duplicate key",
    ),
    "key twice, once escaped": Hostile(
        remap_tensor(
            f'"{LN_F}"',
            f'"\\u0074{LN_F[1:]}": {{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}, "{LN_F}"',
        ),
        "duplicate key",
    ),
    "shape twice": Hostile(remap_tensor('"shape": [', '"shape": [1], "shape": ['), DAMAGED),
    "tensor a list": Hostile(header(lambda content: content.update({LN_F: [1]})), DAMAGED),
    "tensor without a dtype": Hostile(header(lambda content: content[LN_F].pop("dtype")), DAMAGED),
    "no offsets": Hostile(header(lambda content: content[LN_F].pop("data_offsets")), DAMAGED),
    # offsets
    "offsets reversed": Hostile(
        header(lambda content: content[LN_F]["data_offsets"].reverse()), DAMAGED
    ),
    "one offset": Hostile(entry(LN_F, data_offsets=[0]), DAMAGED),
    "three offsets": Hostile(entry(LN_F, data_offsets=[0, 32, 64]), DAMAGED),
    "offsets negative": Hostile(entry(LN_F, data_offsets=[-32, 0]), DAMAGED),
    "offsets huge": Hostile(entry(LN_F, data_offsets=[1 << 62, (1 << 62) + 32]), DAMAGED),
    "offsets beyond 64 bits": Hostile(entry(LN_F, data_offsets=[1 << 70, (1 << 70) + 32]), DAMAGED),
    "offsets floats": Hostile(entry(LN_F, data_offsets=[0.0, 32.0]), DAMAGED),
    "offsets booleans": Hostile(entry(LN_F, data_offsets=[False, True]), DAMAGED),
    "offsets NaN": Hostile(entry(LN_F, data_offsets=[float("nan"), 32]), DAMAGED),
    "offsets texts": Hostile(entry(LN_F, data_offsets=["0", "32"]), DAMAGED),
    "offsets null": Hostile(entry(LN_F, data_offsets=None), DAMAGED),
    "offsets of 5000 digits": Hostile(
        remap_tensor('_offsets": [0', '_offsets": [' + "9" * 5000), DAMAGED
    ),
    "offsets out of the file": Hostile(
        header(lambda content: content[LN_F].update(data_offsets=[10**6, 10**6 + 32])), DAMAGED
    ),
    "offsets overlap": Hostile(
        header(lambda content: content[LN_F].update(data_offsets=[0, 32])), DAMAGED
    ),
    "two tensors in one place": Hostile(
        header(lambda c: c[LN_F].update(data_offsets=c["transformer.ln_f.weight"]["data_offsets"])),
        DAMAGED,
    ),
    "gap": Hostile(header(lambda content: content.pop(LN_F)), DAMAGED),
    # shapes
    "shape negative": Hostile(entry(LN_F, shape=[-8]), DAMAGED),
    "shape negative twice": Hostile(entry(WTE, shape=[-13, -8]), DAMAGED),
    "shape huge": Hostile(entry(LN_F, shape=[1 << 62]), DAMAGED),
    "shape that overflows to the right size": Hostile(entry(LN_F, shape=[1 << 63, 2, 8]), DAMAGED),
    "shape beyond 64 bits": Hostile(entry(LN_F, shape=[(1 << 64) + 8]), DAMAGED),
    "shape floats": Hostile(entry(LN_F, shape=[8.0]), DAMAGED),
    "shape true": Hostile(entry(LN_F, shape=[True]), DAMAGED),
    "shape a number": Hostile(entry(LN_F, shape=8), DAMAGED),
    "shape []": Hostile(entry(LN_F, shape=[]), DAMAGED),
    "shape of 300,000 dimensions": Hostile(entry(LN_F, shape=[8, *[1] * 300_000]), "has shape"),
    "shape [1, 8]": Hostile(entry(LN_F, shape=[1, 8]), r"ln_f\.bias has shape \(1, 8\)"),
    "shape swapped": Hostile(entry(WTE, shape=[8, 13]), r"wte\.weight has shape \(8, 13\)"),
    "attention swapped in one block": Hostile(entry(C_ATTN, shape=[24, 8]), "has shape"),
    "attention swapped in all blocks": Hostile(
        header(lambda c: [c[C_ATTN.replace("0", n)].update(shape=[24, 8]) for n in ("0", "1")]),
        r"c_fc\.weight has shape \(8, 32\), expected \(32, 8\)",
    ),
    "scalar for a vector": Hostile(
        tensors(lambda t: t.update({LN_F: np.array(1, np.float32)})), r"has shape \(\)"
    ),
    "tensor of no bytes": Hostile(
        tensors(lambda t: t.update({LN_F: np.zeros(0, np.float32)})), r"has shape \(0,\)"
    ),
    "tensor of no bytes but rows": Hostile(
        tensors(lambda t: t.update({WTE: np.zeros((13, 0), np.float32)})), r"has shape \(13, 0\)"
    ),
    "one more tensor of no bytes": Hostile(added("x", size=0), "x is unexpected"),
    # dtypes
    "float32 called int32": Hostile(entry(LN_F, dtype="I32"), "has dtype I32, expected one of F64"),
    "float32 called uint32": Hostile(entry(LN_F, dtype="U32"), "has dtype U32"),
    "float32 called float16 pairs": Hostile(entry(LN_F, dtype="F16", shape=[16]), r"shape \(16,\)"),
    "float32 called float16": Hostile(entry(LN_F, dtype="F16"), DAMAGED),
    "float32 called bool": Hostile(entry(LN_F, dtype="BOOL", shape=[32]), "has dtype BOOL"),
    "float32 called float8": Hostile(entry(LN_F, dtype="F8_E4M3", shape=[32]), "dtype F8_E4M3"),
    "dtype unknown": Hostile(entry(LN_F, dtype="F31"), DAMAGED),
    "dtype in small letters": Hostile(entry(LN_F, dtype="f32"), DAMAGED),
    "dtype null": Hostile(entry(LN_F, dtype=None), DAMAGED),
    "dtype a list": Hostile(entry(LN_F, dtype=["F32"]), DAMAGED),
    "float64 beyond float32": Hostile(
        tensors(lambda t: t.update({LN_F: np.full(8, 1e300)})),
        r"ln_f\.bias has values too large",
    ),
    # names
    "tensor missing": Hostile(tensors(lambda t: t.pop(LN_F)), r"ln_f\.bias is missing"),
    "name changed": Hostile(renamed(LN_F, "transformer.ln_f.bia5"), "ln_f.bia5 is unexpected"),
    "name empty": Hostile(renamed(LN_F, ""), r"ln_f\.bias is missing"),
    "name twice, with and without prefix": Hostile(added("ln_f.bias"), r"ln_f\.bias twice"),
    "names exchanged": Hostile(
        header(lambda c: swap(c, C_ATTN, C_FC, "shape", "data_offsets")), "has shape"
    ),
    "name with control characters": Hostile(
        renamed(LN_F, NASTY), r"evil\\x1b\[31m\\nERROR\\r\\x07"
    ),
    "name with control characters, twice": Hostile(
        lambda folder: (added(NASTY)(folder), added("model." + NASTY)(folder)), r"evil\\x1b.* twice"
    ),
    "number too large, nasty name": Hostile(
        lambda folder: (
            tensors(lambda t: t.update({LN_F: np.full(8, 1e300)}))(folder),
            renamed("transformer.ln_f.weight", NASTY)(folder),
        ),
        r"evil\\x1b",
    ),
    "name of 1 MB": Hostile(renamed(LN_F, "x" * 1_000_000), "xxx"),
    "name of 1 MB of prefixes": Hostile(renamed(LN_F, "model." * 170_000), "is missing"),
    "name of 1 MB of damaged prefixes": Hostile(renamed(LN_F, "model.module" * 80_000), "missing"),
    "a million tensors": Hostile(
        header_text(
            lambda text: (
                b"{%s,%s" % (b",".join(b'"%x":%s' % (n, EMPTY) for n in range(10**6)), text[1:])
            )
        ),
        "its header claims",
    ),
    "20,000 tensors": Hostile(many_tensors(20_000), "and 19994 more"),
    "20,000 tensors, as many layers": Hostile(many_tensors(20_000, n_layer=20_001), "more"),
    "20,000 tensors, 18,000 layers": Hostile(many_tensors(20_000, n_layer=18_000), "more"),
    # NaN and infinite weights load; the error comes with the logits
    "weights nan": Hostile(
        tensors(lambda t: t.update({LN_F: np.full(8, np.nan, np.float32)})), None
    ),
    "weights inf": Hostile(
        tensors(lambda t: t.update({LN_F: np.full(8, np.inf, np.float32)})), None
    ),
    "float64 nan that signals": Hostile(
        tensors(
            lambda t: t.update({LN_F: np.full(8, 0x7FF0000000000001, np.uint64).view(np.float64)})
        ),
        None,
    ),
    "float16 nan that signals": Hostile(
        tensors(lambda t: t.update({LN_F: np.full(8, 0x7C01, np.uint16).view(np.float16)})), None
    ),
    "a model of 16 gigabytes": Hostile(sparse, "memory"),
    # the config
    "config empty": Hostile(raw(b"", CONFIG), NOT_JSON),
    "config a list": Hostile(raw(b"[]", CONFIG), NOT_JSON),
    "config null": Hostile(raw(b"null", CONFIG), NOT_JSON),
    "config not JSON": Hostile(raw(b"n_layer: 2", CONFIG), NOT_JSON),
    "config a pickle": Hostile(raw(PICKLE, CONFIG), NOT_JSON),
    "config UTF-16": Hostile(encoded("utf-16"), NOT_JSON),
    "config Latin-1": Hostile(encoded("latin-1"), NOT_JSON),
    "config with a BOM": Hostile(encoded("utf-8-sig"), None),
    "config of 100 MB": Hostile(
        lambda folder: os.truncate(folder / CONFIG, 100 << 20), "has 104,857,600 bytes; expected at"
    ),
    "config nested deeply": Hostile(raw(b"[" * 200_000, CONFIG), NOT_JSON),
    "config as large as allowed of objects": Hostile(
        raw(b'{"a":[' + b'{"":1},' * (ALLOWED // 7) + b"1]}", CONFIG), "do not match"
    ),
    "config key twice": Hostile(with_member('"n_head": 4'), "duplicate key .n_head"),
    "config key twice, nested": Hostile(
        with_member('"task_specific_params": {"a": 1, "a": 2}'), "duplicate key .a"
    ),
    "config of a billion layers": Hostile(configured(n_layer=10**9), "n_layer is 1000000000"),
    "config of 10^400 layers": Hostile(configured(n_layer=10**400), "n_layer is 1000"),
    "config of 10^15 positions": Hostile(configured(n_positions=10**15), "n_positions|wpe"),
    "config with a number of 4300 digits": Hostile(
        instead_of_value("n_embd", "9" * 4298 + "8"), "n_embd is 999"
    ),
    "config with a number of 5000 digits": Hostile(
        instead_of_value("n_embd", "9" * 5000), NOT_JSON
    ),
    "config with 1e400": Hostile(instead_of_value("layer_norm_epsilon", "1e400"), "epsilon is inf"),
    "config with NaN": Hostile(instead_of_value("layer_norm_epsilon", "NaN"), "epsilon is nan"),
    "config with Infinity": Hostile(instead_of_value("n_layer", "Infinity"), "n_layer is inf"),
    "config with -Infinity": Hostile(instead_of_value("n_layer", "-Infinity"), "n_layer is -inf"),
    "epsilon 0": Hostile(configured(layer_norm_epsilon=0), None),
    "epsilon that rounds to 0": Hostile(instead_of_value("layer_norm_epsilon", "1e-400"), None),
    "epsilon negative": Hostile(configured(layer_norm_epsilon=-1e-5), "epsilon is -1e-05"),
    "no heads": Hostile(configured(n_head=0), "n_head is 0"),
    "heads negative": Hostile(configured(n_head=-2), "n_head is -2"),
    "heads do not divide": Hostile(configured(n_head=3), "multiple of n_head"),
    "more heads than channels": Hostile(configured(n_head=16), "multiple of n_head"),
    "no vocabulary": Hostile(configured(vocab_size=0), "vocab_size is 0"),
    "other vocabulary": Hostile(configured(vocab_size=12), r"wte\.weight has shape \(13, 8\)"),
    "layers a text": Hostile(configured(n_layer="2"), "n_layer is '2'"),
    "layers a float": Hostile(configured(n_layer=2.0), r"n_layer is 2\.0"),
    "layers true": Hostile(configured(n_layer=True), "n_layer is True"),
    "layers an object": Hostile(configured(n_layer={"a": {"b": 2}}), "n_layer is {'a'"),
    "fewer layers": Hostile(configured(n_layer=1), "n_layer is 1, but 2 blocks are stored"),
    "switch a text": Hostile(
        configured(scale_attn_weights="false"), "scale_attn_weights is 'false'"
    ),
    "activation nasty": Hostile(configured(activation_function=NASTY), r"evil\\x1b\[31m\\n"),
    "activation of 1 MB": Hostile(configured(activation_function="x" * 1_000_000), "xxx"),
    "activation a pickle's path": Hostile(
        configured(activation_function="os.system"), "expected one"
    ),
    "model type nasty": Hostile(configured(model_type=NASTY), r"evil\\x1b\[31m\\n"),
    "model type llama": Hostile(configured(model_type="llama"), "model_type is 'llama'"),
    "two names, two values": Hostile(configured(hidden_size=16), "its alias hidden_size is 16"),
    "end of text nasty": Hostile(configured(eos_token_id=[NASTY]), r"evil\\x1b"),
    "end of text a lone surrogate": Hostile(configured(eos_token_id="\ud800"), r"\\ud800"),
    "code of its own": Hostile(configured(auto_map={"AutoModel": "evil.Model"}), None),
    # the index and the shards
    "index empty": Hostile(raw(b"", INDEX), r"index\.json is damaged", "float16"),
    "index a list": Hostile(raw(b"[]", INDEX), r"index\.json is damaged", "float16"),
    "index without a map": Hostile(raw(b"{}", INDEX), "it has no weight_map", "float16"),
    "index with an empty map": Hostile(
        raw(b'{"weight_map":{}}', INDEX), "no weight_map", "float16"
    ),
    "index with a list": Hostile(raw(b'{"weight_map":["a"]}', INDEX), "no weight_map", "float16"),
    "index of 100 MB": Hostile(
        lambda folder: os.truncate(folder / INDEX, 100 << 20),
        "has 104,857,600 bytes; expected at",
        "float16",
    ),
    "index not UTF-8": Hostile(raw(b'{"weight_map":{"\xff":"a"}}', INDEX), "not JSON", "float16"),
    "index key twice": Hostile(
        lambda folder: (folder / INDEX).write_text(
            (folder / INDEX)
            .read_text()
            .replace('"weight_map": {', f'"weight_map": {{"{WTE}": "x",')
        ),
        "duplicate key",
        "float16",
    ),
    "shard missing": Hostile(on_shard(Path.unlink), r"lacks model-00001-of", "float16"),
    "shard empty": Hostile(on_shard(empty), DAMAGED, "float16"),
    "shard a FIFO": Hostile(on_shard(fifo), "not a file", "float16"),
    "shard a directory": Hostile(on_shard(directory), "not a file", "float16"),
    "shard a device": Hostile(on_shard(device), "not a file", "float16"),
    "shard a loop": Hostile(on_shard(loop), "lacks model-00001-of", "float16"),
    "shard a pickle": Hostile(on_shard(lambda path: path.write_bytes(PICKLE)), DAMAGED, "float16"),
    "shard twice": Hostile(
        lambda folder: shutil.copy(shard_of(folder, 0), shard_of(folder, 1)),
        "does not contain it",
        "float16",
    ),
    "tensor in two shards": Hostile(duplicate_tensors, "is in two shards", "float16"),
    "tensor in another shard": Hostile(
        lambda folder: map_tensor(WTE, shard_of(folder, -1).name)(folder),
        "does not contain it",
        "float16",
    ),
    "tensor in no shard": Hostile(
        lambda folder: map_tensor("x\x1b[0m\n", shard_of(folder).name)(folder),
        r"maps x\\x1b\[0m\\n to .* does not contain it",
        "float16",
    ),
    "shard a number": Hostile(map_tensor(WTE, 1), "mapped to 1;", "float16"),
    "shard null": Hostile(map_tensor(WTE, None), "mapped to None;", "float16"),
    "shard a list": Hostile(
        map_tensor(NASTY, ["a.safetensors"]), r"evil\\x1b.* is mapped to", "float16"
    ),
    "shard without a name": Hostile(map_tensor(WTE, ""), "mapped to '';", "float16"),
    "shard .": Hostile(map_tensor(WTE, "."), r"mapped to '\.';", "float16"),
    "shard ..": Hostile(map_tensor(WTE, ".."), r"mapped to '\.\.';", "float16"),
    "shard is the index": Hostile(map_tensor(WTE, INDEX), "mapped to", "float16"),
    "shard is the config": Hostile(map_tensor(WTE, CONFIG), "mapped to 'config.json'", "float16"),
    "shard is a pickle's name": Hostile(
        map_tensor(WTE, "pytorch_model.bin"), "mapped to", "float16"
    ),
    "shard in the parent folder": Hostile(
        outside("../{name}"), r"mapped to '\.\./model", "float16"
    ),
    "shard with backslashes": Hostile(outside("..\\{name}"), "mapped to", "float16"),
    "shard with an absolute path": Hostile(outside("{parent}/{name}"), "mapped to '/", "float16"),
    "shard with a drive": Hostile(outside("c:{name}"), "mapped to 'c:", "float16"),
    "shard in a subfolder": Hostile(outside("sub/{name}"), "mapped to 'sub/", "float16"),
    "shard down and up again": Hostile(outside("sub/../../{name}"), "mapped to 'sub/", "float16"),
    "shard with a zero byte": Hostile(
        map_tensor(WTE, "a\0.safetensors"), r"mapped to 'a\\x00", "float16"
    ),
    "shard with a line's end": Hostile(
        map_tensor(WTE, "a\n.safetensors"), r"mapped to 'a\\n", "float16"
    ),
    "shard with a name of 1 MB": Hostile(
        map_tensor(WTE, "x" * 1_000_000 + ".safetensors"), "xxx", "float16"
    ),
    "50,000 shards": Hostile(
        json_file(
            INDEX,
            lambda content: content.update(
                weight_map={f"{n}": f"{n}.safetensors" for n in range(50_000)}
            ),
        ),
        "lacks 0.safetensors",
        "float16",
    ),
    "a thousand shards of nothing": Hostile(many_shards, "does not contain it", "float16"),
    "all is linked": Hostile(linked_elsewhere, None),
    "all shards are linked": Hostile(linked_elsewhere, None, "float16"),
    "one file beside the shards": Hostile(
        lambda folder: (folder / WEIGHTS).write_bytes(b"x"), DAMAGED, "float16"
    ),
}

for _depth in (900, 940, 960, 970, 980, 990):  # near Python's recursion limit of 1000
    _nested = "[" * _depth + "]" * _depth
    HAND_MADE |= {
        f"layers a list, {_depth} deep": Hostile(
            instead_of_value("n_layer", _nested), "n_layer is|damaged"
        ),
        f"two names, {_depth} deep": Hostile(
            instead_of_value("n_embd", f'{_nested}, "hidden_size": {_nested}'),
            "n_embd is|hidden_size is|damaged",
        ),
        f"temperature a list, {_depth} deep": Hostile(
            raw(b'{"temperature": ' + _nested.encode() + b"}", "generation_config.json"),
            "temperature is|damaged",
            whole=True,
        ),
    }

for _file in (WEIGHTS, CONFIG, INDEX, "generation_config.json"):
    for _kind in (fifo, directory, device, loop, dangling):
        HAND_MADE[f"{_file} a {_kind.__name__}"] = Hostile(
            lambda folder, file=_file, kind=_kind: kind(folder / file),
            r"is missing, or not a file|is not a file|can(?:not|'t) read|has no model\.safetensors",
            "float16" if _file == INDEX else "float32",
            whole=True,
        )

for _file in (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
):
    for _kind in (fifo, directory, device):
        HAND_MADE[f"{_file} a {_kind.__name__}"] = Hostile(
            lambda folder, file=_file, kind=_kind: kind(folder / file),
            "not a file|cannot read|has no vocabulary",
            error="TokenizerError",
            whole=True,
        )
