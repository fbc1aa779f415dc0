"""Score documents: log probability, perplexity, bits per byte.

FILE is a text file, a table with a document per row (.jsonl, .csv, .tsv,
.parquet), a folder of .txt files and tables, or a pattern ('text/**/*.md'). In
text files, <|endoftext|> separates documents. In tables, a row is one document,
and <|endoftext|> in it is a special token like any other: see --special.

The command prints the perplexity of all documents together. With --out, it also
writes a row for each document: the columns of the input, and then

file, document, model  where the document is from, and what scored it
from_end_of_text       whether <|endoftext|> was put before the document
tokens, words, characters, bytes
                       the size of the document
counted                the number of scored tokens
log_probability        the sum of the scored tokens' log probabilities, in nats
perplexity             the perplexity per scored token
word_perplexity, byte_perplexity, bits_per_character, bits_per_byte
                       of the whole document; an unscored token is assumed to
                       be as likely as the average

A long document is read in windows of --context tokens, one every --stride
tokens. Each token is scored once, in the first window that contains it. The
first token of a window has no context: windows that do not overlap (--stride
equal to --context) leave it unscored, and so does --no-from-end-of-text.

Run an interrupted command with --out again to resume. A document that cannot be
read is reported and skipped; the exit code is then 1.
"""

import argparse
import json
from typing import Any

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.jobs import (
    add_files_argument,
    add_ray_arguments,
    add_rows_arguments,
    corpus_files,
    model_source,
    ray_cluster,
    report_rows,
    running_corpus_job,
)
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.data.options import ScoreOptions
from gpt2np.errors import InvalidArgumentError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "files", "FILE")
    add_options(parser, ScoreOptions, ("field", "context", "stride", "from_end_of_text", "special"))
    output = parser.add_argument_group("Output")
    add_rows_arguments(output, required=False)
    add_option(output, ScoreOptions, "tokens")
    json_help = "Print the perplexity of all documents as one JSON object"
    output.add_argument("--json", action="store_true", help=json_help)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes")
    add_ray_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score the documents and return the exit code: 1 if a document was skipped."""
    from gpt2np.data.resumable import check_output, partial_folder
    from gpt2np.data.rows import ROW_SUFFIXES
    from gpt2np.evaluation.corpus import perplexity_of_files, score_corpus
    from gpt2np.evaluation.perplexity import check_scored

    written = [args.out, partial_folder(args.out)] if args.out else []
    options = ScoreOptions(**given_options(args, ScoreOptions))
    files = corpus_files(args.files, written)
    if args.out:
        check_output(args.out, ROW_SUFFIXES, force=args.force)
    elif args.tokens or args.force or args.address is not None:
        raise InvalidArgumentError("--tokens, --force and --ray need --out")
    cluster, elsewhere = ray_cluster(args), dict[str, Any]()
    lm = load_model(args, may_fall_back=False)
    if cluster:
        from gpt2np.distributed.jobs import score_on_ray

        elsewhere = score_on_ray(model_source(args, lm), options, files, cluster)
    with running_corpus_job(files, args.out, "scoring") as callbacks:
        if args.out:
            outcome = score_corpus(
                lm, files, args.out, options, callbacks, force=args.force, **elsewhere
            )
        else:
            outcome = perplexity_of_files(lm, files, options, callbacks)
    total = outcome.result
    check_scored(total)
    if args.json:
        content = {"model": lm.name, "from_end_of_text": bool(options.from_end_of_text)}
        print(json.dumps(content | total.to_json(), ensure_ascii=False), flush=True)
    else:
        print(total.to_text(), flush=True)
    return report_rows(args.out, (total.documents, "document"), (outcome.n_skipped, "document"))
