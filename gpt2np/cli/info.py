"""Show a model's config, tensors, parameters and memory.

The command downloads the whole model if it is not in the Hugging Face cache,
but reads only config.json and the headers of the weight files. The exit code is
1 if the weights do not fit the config.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt2np.errors import CheckpointError, is_integer, printable
from gpt2np.runtime.options import MODEL_HELP

if TYPE_CHECKING:
    from gpt2np.checkpoint.load import Checkpoint
    from gpt2np.hub import ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    output = parser.add_argument_group("Output").add_argument
    output("--json", action="store_true", help="Print the information as one JSON object")


def run(args: argparse.Namespace) -> int:
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    source = find_model(args.model)
    content = _as_json(source, read_checkpoint(source.path))
    if args.json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        print("\n".join(map(printable, _text_lines(dict(content)))))
    sys.stdout.flush()  # so that the report precedes the error
    if problems := content["problems"]:
        raise CheckpointError(f"the weights do not fit the config: {'; '.join(problems)}")
    return 0


def _as_json(source: "ModelSource", checkpoint: "Checkpoint") -> dict[str, Any]:
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
        for name, tensor in checkpoint.tensors.items()
    ]
    return {
        "model": source.name,
        "folder": str(source.path.absolute()),
        "config": asdict(config),
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


def _text_lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each value, tensor and problem."""
    parts = {**content.pop("config"), **content.pop("memory")}
    tensors, problems = content.pop("tensors"), content.pop("problems")
    for name, value in {**content, **parts}.items():
        yield f"{name:<32}{value:,}" if is_integer(value) else f"{name:<32}{value}"
    for tensor in tensors:
        shape = " × ".join(map(str, tensor["shape"]))
        yield f"{tensor['name']:<32}{shape:<16}{tensor['dtype']:<8}{tensor['bytes']:>13,}"
    yield from problems
