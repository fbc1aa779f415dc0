"""Write a model's folder anew: in another dtype, as one file or as shards.

DST becomes a folder that gpt2np and transformers read, with GPT2LMHeadModel's
names and layout, whatever SRC's are; vocabulary, card and generation config
are copied. Of SRC only safetensors are read. All is written to a temporary
folder, read back, compared, and then renamed.
"""

import argparse
import json
import re
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.streams import notice
from gpt2np.errors import GPT2NPError, InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.checkpoint.convert import ConversionOptions, ConversionReport
    from gpt2np.checkpoint.load import Checkpoint

DTYPES = ("float32", "float16", "bfloat16", "float64")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("source", metavar="SRC", help="a Hugging Face id, a folder, or 'bundled'")
    add("target", type=Path, metavar="DST", help="the folder to write; a new or an empty one")
    add("--dtype", choices=DTYPES, help="default: as the token embedding is stored")
    add(
        "--max-shard-size",
        metavar="SIZE",
        help="at most so much in one file, such as 500MB or 2GB, but for a single tensor that has "
        "more; default: one file",
    )
    add(
        "--keep-head",
        action="store_true",
        help="store lm_head.weight also where it equals wte.weight, for tools that ask for it",
    )
    add("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Convert and report; returns the exit code."""
    if args.target == Path():
        raise InvalidArgumentError("DST is empty or the folder you are in; name a new folder")
    limit = None if args.max_shard_size is None else _bytes(args.max_shard_size)
    from gpt2np.checkpoint.convert import ConversionOptions
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    options = ConversionOptions(args.dtype, limit, args.keep_head)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that no half of DST is left
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    checkpoint = read_checkpoint(find_model(args.source).folder)
    converted = _convert(checkpoint, args.target, options)
    if args.json:
        print(json.dumps({"folder": str(args.target), **asdict(converted)}, ensure_ascii=False))
    else:
        print(args.target)
        notice(_summary(converted))
    if converted.not_finite:
        notice(f"NaN or infinite numbers are in {', '.join(converted.not_finite)}")
    return 0


def _convert(
    checkpoint: "Checkpoint", target: Path, options: "ConversionOptions"
) -> "ConversionReport":
    from tqdm import tqdm

    from gpt2np.checkpoint.convert import convert
    from gpt2np.hub import COMPANIONS

    total = 2 * checkpoint.n_parameters  # written, and read back
    with tqdm(
        total=total, desc="converting", unit_scale=True, leave=False, disable=None, delay=0.5
    ) as bar:
        try:
            return convert(
                checkpoint, target, options, companions=COMPANIONS, on_progress=bar.update
            )
        except OSError as error:
            raise GPT2NPError(f"can't write {target}: {error.strerror}") from error


def _summary(converted: "ConversionReport") -> str:
    files = converted.files[0] if len(converted.files) == 1 else f"{len(converted.files)} files"
    tied = "unembedding tied" if converted.tied else "unembedding of its own"
    return (
        f"{files}, {converted.nbytes / 1e6:,.1f} MB in {converted.dtype}, {tied}; read back: the "
        f"largest change of a weight is {converted.largest_change:.2g}"
    )


def _bytes(size: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]?I?B?)", size.upper())
    number = float(match[1]) * _UNITS.get(match[2], 0) if match else 0
    if not 1 <= number < 1e18:
        raise InvalidArgumentError(
            f"--max-shard-size is {size!r}; expected a size such as 500MB or 2GB"
        )
    return int(number)
