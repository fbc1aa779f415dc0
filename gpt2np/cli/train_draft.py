"""Build an n-gram table that provides draft tokens for generation.

FILES are text files, .jsonl files (one document per line), .csv, .tsv or
.parquet files (one document per row), folders of such files, or patterns such
as 'text/**/*.txt'. Text, .jsonl, .csv and .tsv files may be compressed (.gz).
In text files, <|endoftext|> separates documents.

The table holds the most likely next token after each frequent context of up to
three tokens. Generation verifies draft tokens, so a table changes only the
speed, never the text. By default, generation uses the table
ngram_draft.safetensors in the model's folder; the option --draft of generate,
chat and serve selects another table. Texts that the model itself has generated
make the best table.
"""

import argparse
from pathlib import Path

from gpt2np.cli.declared_options import add_option
from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_skipped, print_stderr, with_character_bar, write_errors
from gpt2np.cli.text_input import add_files_argument, spool_stdin
from gpt2np.data.options import DatasetOptions
from gpt2np.errors import InvalidArgumentError, counted

_MIN_BYTES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files_argument(parser, "files", "FILES")
    add_vocabulary_argument(parser)
    add = parser.add_argument
    out = "Table to write; the name must end in .safetensors"
    add("--out", type=Path, required=True, metavar="FILE", help=out)
    max_bytes = "Maximum size of the table (default: 4000000)"
    add("--max-bytes", type=int, default=4_000_000, metavar="N", help=max_bytes)
    add_option(parser, DatasetOptions, "field", default=DatasetOptions.field)
    add("--skip-errors", action="store_true", help="Skip files that cannot be read")
    add("--force", action="store_true", help="Overwrite the table if it exists")


def run(args: argparse.Namespace) -> int:
    from gpt2np.data.corpus import CorpusOptions, find_files, read_parts
    from gpt2np.data.files import check_output_file
    from gpt2np.generation.ngram_counts import NgramCounts, build_table
    from gpt2np.generation.ngram_table import max_entries, vocabulary_fingerprint

    if args.out.suffix != ".safetensors":
        raise InvalidArgumentError(f"--out {args.out} must end in .safetensors")
    if args.max_bytes < _MIN_BYTES:
        raise InvalidArgumentError(f"--max-bytes is {args.max_bytes}; give at least {_MIN_BYTES}")
    check_output_file(args.out, overwrite=args.force)
    files = find_files(map(spool_stdin, args.files), [args.out], print_stderr)
    tokenizer, description = load_tokenizer(args.model)
    print_stderr(description)
    counts = NgramCounts(tokenizer.vocab_size)
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    # Splitting may change a token at a boundary; the effect on the counts is negligible.
    options = CorpusOptions(field=args.field, split_long_documents=True)
    parts = read_parts(files, options, print_skipped if args.skip_errors else None)
    for text, ends_document in with_character_bar(parts, "counting"):
        counts.add(tokenizer.encode(text, disallowed_special=()))
        if ends_document:
            counts.add(eos)
    if not counts.n_ids:
        raise InvalidArgumentError("the files have no text; there is nothing to count")
    token_bytes = tokenizer.vocabulary.token_bytes
    fingerprint = vocabulary_fingerprint(token_bytes, counts.vocab_size)
    table = build_table(counts, fingerprint, max_entries(args.max_bytes, counts.vocab_size))
    with write_errors(args.out):
        table.save(args.out)
        size = args.out.stat().st_size
    print_stderr(
        f"{counted(len(table.hashes), 'context')}, counted in {counted(counts.n_ids, 'token')}: "
        f"{args.out} ({size:,} bytes)"
    )
    return 0
