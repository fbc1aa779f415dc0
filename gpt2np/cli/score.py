"""Score each document of a corpus: log probability, perplexity, bits per byte.

FILE is a folder, a pattern such as 'text/**/*.jsonl', or a file. A .jsonl file
has a document per line; a .csv, .tsv or .parquet file has a document per row.
In a text file, <|endoftext|> separates documents, so a document can have
several lines. Text, .jsonl, .csv and .tsv files may be compressed (.gz).

The --out file has a row for each document, in the order of the documents:

file                  the name of the file; - is standard input
document              the number of the line, row or document in the file
tokens                the number of tokens in the document
counted               the number of scored tokens in the document
characters            the number of characters in the document
bytes                 the number of bytes in the document, in UTF-8
log_probability       the sum of the scored tokens' log probabilities, in nats
perplexity            the perplexity per scored token
bits_per_character    for the whole document, as in 'gpt2np eval perplexity'
bits_per_byte         for the whole document, as in 'gpt2np eval perplexity'

Windows and scores are defined as in 'gpt2np eval perplexity'. But the first
token of a document is scored, too, unless --no-from-end-of-text is given. If a
document cannot be read, the command reports the document's number, skips the
document, and exits with code 1.

Run an interrupted command again to resume. If the model, an option or a scored
file has changed, the command fails and names the change. With --force, the
command discards the affected results instead.
"""

import argparse
from pathlib import Path

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.model_options import (
    add_model_arguments,
    add_ray_arguments,
    load_with_fingerprint,
    model_source,
    ray_cluster,
)
from gpt2np.cli.output import print_stderr, report_rows, running_corpus_job
from gpt2np.cli.text_input import add_files_argument, check_field, spool_stdin
from gpt2np.data.options import DatasetOptions
from gpt2np.errors import GPT2NPError
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.kernels.threads import set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "files", "FILE")
    add_options(parser, ScoreOptions, ("field", "context", "stride", "from_end_of_text"))
    output = parser.add_argument_group("Output")
    out = "File for the scores: .jsonl or .parquet"
    output.add_argument("--out", type=Path, metavar="FILE", required=True, help=out)
    add_option(output, ScoreOptions, "tokens")
    force = "Overwrite the --out file; discard partial results that no longer apply"
    output.add_argument("--force", action="store_true", help=force)
    add_option(output, DatasetOptions, "max_rows_per_file")
    add_model_arguments(parser, "dtype", "exact", "weights", "processes")
    add_ray_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score the documents and return the exit code: 1 if a document was skipped."""
    set_threads(args.threads)  # must come before NumPy is imported
    from gpt2np.data.corpus import find_files
    from gpt2np.data.resumable import partial_folder
    from gpt2np.data.rows import check_rows_output
    from gpt2np.evaluation.corpus import score_corpus

    written = [args.out, partial_folder(args.out)]
    files = find_files(map(spool_stdin, args.files), written, print_stderr)
    check_rows_output(args.out, overwrite=args.force)
    options = ScoreOptions(**given_options(args, ScoreOptions))
    check_field(options.field, files)
    cluster, run_elsewhere = ray_cluster(args), None
    lm, fingerprint = load_with_fingerprint(args)
    if cluster:
        from gpt2np.distributed.jobs import score_on_ray

        run_elsewhere = score_on_ray(model_source(args, lm), options, cluster)
    rest = fingerprint, args.force, run_elsewhere, args.max_rows_per_file
    with running_corpus_job(args.out, files, "scoring") as callbacks:
        n_written, n_skipped, _ = score_corpus(lm, files, args.out, options, callbacks, *rest)
    if not n_written:
        raise GPT2NPError(f"the files have no document to score; {args.out} is not written")
    return report_rows(args.out, (n_written, "document"), (n_skipped, "document"))
