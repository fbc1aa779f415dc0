"""Encode a corpus to one file of ids, for training.

An INPUT is a text file, a .jsonl file (a document in a field of each line),
either also as .gz, an .npz file of ids, a folder with such files, or a pattern
such as 'text/**/*.txt'. In a text file, documents end at <|endoftext|>; line
ends beside it, and at a file's beginning and end, belong to none.

OUT tells the format. x.bin: the ids, raw, uint16 (uint32 where the vocabulary
is larger), each document followed by that of <|endoftext|>, as nanoGPT reads
them; x.npy: the same as a NumPy array; x.npz: arrays of ids, as GPT-2's
training reads them. An interrupted run goes on when the command is repeated;
with another model, --field or --skip-errors it begins anew, and says so.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.output import print_stderr, report_interrupted, write_errors
from gpt2np.cli.vocabulary import add_model_argument, load_tokenizer
from gpt2np.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.data.dataset import Dataset, DatasetOptions
    from gpt2np.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="files, folders, patterns")
    add("out", type=Path, metavar="OUT", help="the file to write: .bin, .npy or .npz")
    add_model_argument(parser)
    add("--field", default="text", help="of a .jsonl line (default: text)")
    add(
        "--combine",
        type=int,
        metavar="N",
        help="in an .npz, join documents, with <|endoftext|> between them, until an array holds "
        "N characters (default: 50000)",
    )
    add("--processes", type=int, default=1, metavar="N", help="encode in N at once (default: 1)")
    add("--skip-errors", action="store_true", help="leave out files that can't be read, wholly")
    add("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    """Encode and write; returns the exit code."""
    from gpt2np.data.append_log import partial_folder
    from gpt2np.data.dataset import DatasetOptions, check_output, find_inputs

    check_output(args.out)
    if args.combine is not None and args.out.suffix != ".npz":
        raise InvalidArgumentError(f"--combine is for an .npz, which {args.out} is not")
    combine = DatasetOptions.combine if args.combine is None else args.combine
    try:
        options = DatasetOptions(args.field, combine, args.skip_errors, args.processes)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--{error}") from error
    if args.out.exists() and not args.force:
        raise InvalidArgumentError(f"{args.out} exists already; give --force to replace it")
    files = find_inputs(args.inputs, args.out)
    tokenizer, which = load_tokenizer(args.model)
    print_stderr(which)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the bar's line is ended
    try:
        with write_errors(args.out, check_filename=True):
            dataset = _encode(files, args.out, tokenizer, options)
    except KeyboardInterrupt:
        return report_interrupted(partial_folder(args.out))
    print_stderr(
        f"{dataset.documents:,} documents, {dataset.ids:,} ids ({dataset.dtype}) in {args.out}"
    )
    return 0


def _encode(
    files: list[Path], out: Path, tokenizer: "Tokenizer", options: "DatasetOptions"
) -> "Dataset":
    from tqdm import tqdm

    from gpt2np.data.append_log import partial_folder
    from gpt2np.data.dataset import encode_dataset

    total = sum(file.stat().st_size for file in files)
    with tqdm(
        total=total, desc="encoding", unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:

        def resume(done: int) -> None:
            bar.write(f"going on at {done / total:.0%}", file=sys.stderr)
            bar.initial = bar.n = done

        return encode_dataset(
            files,
            out,
            tokenizer,
            options,
            on_resume=resume,
            on_restart=lambda: bar.write(
                f"{partial_folder(out)} is from other files or options; starting over",
                file=sys.stderr,
            ),
            on_progress=lambda done: bar.update(done - bar.n),
            on_skip=lambda error: bar.write(f"skipped: {error}", file=sys.stderr),
        )
