"""Change the dtype of a model's weights, or the number of weight files.

SRC must contain safetensors files. The new folder DST works with gpt2np and
transformers: tensors have the names and the layout of GPT2LMHeadModel. The
vocabulary, the model card and the generation config are copied. All files are
first written to a temporary folder; then the folder is renamed to DST.
"""

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from gpt2np.cli.output import print_stderr
from gpt2np.errors import SEE_MISSING_FEATURES, GPT2NPError, InvalidArgumentError
from gpt2np.progress import progress_bar
from gpt2np.runtime.options import MODEL_HELP

DTYPES = ("float32", "float16", "bfloat16", "float64")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SRC", help=MODEL_HELP)
    add("target", type=Path, metavar="DST", help="Folder to write; must be new or empty")
    output = parser.add_argument_group("Output").add_argument
    dtype = "Data type of the stored weights (default: dtype of the token embedding in SRC)"
    output("--dtype", choices=DTYPES, help=dtype)
    output(
        "--max-shard-size",
        metavar="SIZE",
        help="Maximum size of a weight file, such as 500MB or 2GB; a tensor larger than SIZE gets "
        "a separate file (default: one file for all weights)",
    )
    keep = "Store lm_head.weight, which some tools require, even if it equals wte.weight"
    output("--keep-head", action="store_true", help=keep)
    output("--json", action="store_true", help="Print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.target == Path():
        raise InvalidArgumentError("DST is empty or the current folder; name a new folder")
    if args.target == Path("-"):
        raise InvalidArgumentError("DST is -, but several files are written; name a new folder")
    from gpt2np.hub.model_files import COMPANIONS, UNSUPPORTED_SUFFIXES

    if args.target.suffix.lower() in (".safetensors", *UNSUPPORTED_SUFFIXES):
        reason = f"the output is a folder with safetensors files, but DST is {args.target}"
        raise InvalidArgumentError(f"{reason}; name a folder, or {SEE_MISSING_FEATURES}")
    limit = None if args.max_shard_size is None else _parse_size(args.max_shard_size)
    from gpt2np.checkpoint.convert import convert
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    # Like Ctrl-C, SIGTERM raises an exception, so that `convert` removes the temporary folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    source = find_model(args.source).path
    checkpoint = read_checkpoint(source)
    with progress_bar(checkpoint.n_parameters, "converting", "parameter") as bar:
        converted = convert(
            checkpoint,
            args.target,
            dtype=args.dtype,
            max_shard_size=limit,
            keep_head=args.keep_head,
            companions=COMPANIONS,
            on_progress=bar.update,
        )
    if args.json:
        print(json.dumps({"folder": str(args.target), **asdict(converted)}, ensure_ascii=False))
    else:
        print(args.target)
        names = converted.files
        files = names[0] if len(names) == 1 else f"{len(names)} files"
        tied = "tied unembedding" if converted.tied else "separate unembedding"
        size = f"{converted.nbytes / 1e6:,.1f} MB in {converted.dtype}"
        print_stderr(f"{files}, {size}, {tied}")
    for problem in _companion_problems(source, args.target):
        print_stderr(f"warning: {problem}")
    return 0


def _companion_problems(source: Path, target: Path) -> Iterator[str]:
    """Yield messages about files that were not copied, and about an invalid vocabulary."""
    from gpt2np.hub.model_files import COMPANIONS
    from gpt2np.tokenizer import Tokenizer

    names = {path.name for path in source.iterdir() if any(map(path.match, COMPANIONS))}
    if left_out := sorted(name for name in names if not (target / name).exists()):
        yield f"not copied, because not a file in {source}: {', '.join(left_out)}"
    try:
        Tokenizer.load(target)
    except GPT2NPError as error:
        yield f"the model cannot be loaded without a valid vocabulary: {error}"


def _parse_size(size: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]?I?B?)", size.upper())
    number = float(match[1]) * _UNITS.get(match[2], 0) if match else 0
    if not 1 <= number < 1e18:
        raise InvalidArgumentError(
            f"--max-shard-size is {size!r}; expected a size such as 500MB or 2GB"
        )
    return int(number)
