"""Encode a corpus to one file of token ids, for training.

INPUT is a text file, a table with a document per row (.jsonl, .csv, .tsv,
.parquet), a folder of .txt files and tables, or a pattern ('text/**/*.md'). In
every text, <|endoftext|> separates documents. Empty documents are dropped.

The suffix of OUT selects the format:

.bin   Raw ids, as nanoGPT reads them: uint16, or uint32 for a large vocabulary.
       The id of <|endoftext|> follows each document.
.npy   The same ids as in .bin, as a NumPy array.
.npz   Several arrays of ids, as nshepperd's gpt-2 reads them.

Run an interrupted command again to resume. You may then add files whose paths
sort after all paths of the first run.
"""

import argparse
from functools import partial
from pathlib import Path

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.jobs import (
    add_files_argument,
    add_ray_arguments,
    corpus_files,
    ray_cluster,
    running_corpus_job,
)
from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_stderr
from gpt2np.data.options import DatasetOptions
from gpt2np.errors import InvalidArgumentError, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "inputs", "INPUT")
    parser.add_argument("out", type=Path, metavar="OUT", help="File to write: .bin, .npy or .npz")
    add_vocabulary_argument(parser)
    add_options(parser, DatasetOptions, ("field", "skip_errors", "special"))
    output = parser.add_argument_group("Output")
    force = "Overwrite OUT; discard unfinished results if input or options have changed"
    output.add_argument("--force", action="store_true", help=force)
    add_options(output, DatasetOptions, ("combine",))
    add_option(parser.add_argument_group("Performance"), DatasetOptions, "processes")
    add_ray_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from gpt2np.data.resumable import check_output, partial_folder
    from gpt2np.tokenizer.dataset import SUFFIXES, encode_dataset

    check_output(args.out, SUFFIXES, force=args.force)  # before inputs: OUT may be forgotten
    if args.combine is not None and args.out.suffix.lower() != ".npz":
        raise InvalidArgumentError(f"--combine needs an .npz output, not {args.out}")
    options = DatasetOptions(**given_options(args, DatasetOptions))
    written = [args.out, partial_folder(args.out)]
    files = corpus_files(args.inputs, written)
    tokenizer, description = load_tokenizer(args.model)
    print_stderr(description)
    elsewhere = None
    if cluster := ray_cluster(args):
        from gpt2np.distributed.cluster import map_on_cluster

        elsewhere = partial(map_on_cluster, cluster=cluster)
    with running_corpus_job(files, args.out, "encoding") as callbacks:
        dataset = encode_dataset(
            files, args.out, tokenizer, options, callbacks, force=args.force, map_items=elsewhere
        )
    documents, ids = counted(dataset.documents, "document"), counted(dataset.ids, "id")
    print_stderr(f"{documents}, {ids} ({dataset.dtype}) in {args.out}")
    return 0
