"""Tell what a model is made of: config, tensors, parameters, memory, licence.

Only config.json and the headers of the weight files are read, unless --check
asks for every number. Exit code 1 if the weights don't fit the config, or if
--check finds NaN or infinite ones.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt2np.errors import printable

if TYPE_CHECKING:
    from gpt2np.checkpoint.load import Checkpoint
    from gpt2np.hub import ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Hugging Face id, a folder, or 'bundled'")
    check = "read every number: are any NaN or infinite, does a stored lm_head differ from wte?"
    add("--check", action="store_true", help=check)
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Read the headers and print; returns the exit code."""
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    source = find_model(args.model)
    checkpoint = read_checkpoint(source.folder)
    content = _content(source, checkpoint)
    if args.check and not content["problems"]:
        content["check"] = _check(checkpoint)
    if args.json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        print("\n".join(map(printable, _lines(content))))
    spoiled = content.get("check", {}).get("not_finite")
    return 1 if content["problems"] or spoiled else 0


def _content(source: "ModelSource", checkpoint: "Checkpoint") -> dict[str, Any]:
    from gpt2np.hub.model_files import read_licence
    from gpt2np.runtime.kv_cache import cache_nbytes

    config = checkpoint.config
    tensors = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "bytes": tensor.nbytes,
            "file": tensor.path.name,
        }
        for name, tensor in checkpoint.sorted_tensors().items()
    ]
    return {
        "model": source.name,
        "folder": str(source.folder),
        "licence": read_licence(source.folder),
        "config": asdict(config),
        "layout": "[out, in]" if checkpoint.transposed else "[in, out]",
        "files": sorted({tensor.path.name for tensor in checkpoint.tensors.values()}),
        "bytes": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        "parameters": checkpoint.n_parameters,
        "stored_head": sum(t.size for t in checkpoint.tensors.values()) - checkpoint.n_parameters,
        "memory": {
            "float32_weights": 4 * checkpoint.n_parameters,
            "float32_kv_cache": cache_nbytes(config, config.n_positions),
        },
        "tensors": tensors,
        "problems": checkpoint.find_problems(),
    }


def _check(checkpoint: "Checkpoint") -> dict[str, Any]:
    from gpt2np.checkpoint.load import is_finite
    from gpt2np.checkpoint.names import LM_HEAD

    tensors = checkpoint.tensors
    return {
        "not_finite": [name for name in tensors if not is_finite(tensors[name])],
        "own_lm_head": LM_HEAD in tensors and not checkpoint.is_tied(),
    }


def _lines(content: dict[str, Any]) -> Iterator[str]:
    for name in ("model", "folder", "licence"):
        yield f"{name:<12}{content[name] or 'none named'}"
    files = content["files"][0] if len(content["files"]) == 1 else f"{len(content['files'])} files"
    yield f"{'weights':<12}{files}, {_megabytes(content['bytes'])}"
    yield f"{'parameters':<12}{content['parameters']:,}"
    if head := content["stored_head"]:
        yield f"{'':<12}and {head:,} of an unembedding, used if it differs (see --check)"
    context, memory = content["config"]["n_positions"], content["memory"]
    yield (
        f"{'memory':<12}{_megabytes(memory['float32_weights'])} of weights in float32; and "
        f"{_megabytes(memory['float32_kv_cache'])} of keys and values for {context:,} tokens"
    )
    yield from ("", "config")
    for name, value in content["config"].items():
        yield f"  {name:<32}{value}"
    yield ""
    yield f"{'tensor':<32}{'shape':<16}{'dtype':<8}{'bytes':>13}  matrices {content['layout']}"
    for tensor in content["tensors"]:
        shape = " × ".join(map(str, tensor["shape"]))
        yield f"{tensor['name']:<32}{shape:<16}{tensor['dtype']:<8}{tensor['bytes']:>13,}"
    if "check" in content:
        spoiled = ", ".join(content["check"]["not_finite"]) or "none"
        yield ""
        yield f"with NaN or infinite numbers: {spoiled}"
        yield f"unembedding of its own: {'yes' if content['check']['own_lm_head'] else 'no'}"
    if content["problems"]:
        yield from ("", "the weights do not fit the config:")
        yield from (f"  {problem}" for problem in content["problems"])


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
