"""Train a vocabulary on text.

FILES are text files, tables with a document per row (.jsonl, .csv, .tsv,
.parquet), folders of such files, or patterns such as 'text/**/*.txt'. In a
text, <|endoftext|> and every other special token separate documents.

The vocabulary is written to the folder --out, in files that gpt2np, tokenizers
and transformers read. A report shows how well it compresses the text.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.jobs import add_files_argument, corpus_files
from gpt2np.cli.output import print_stderr
from gpt2np.data.options import DatasetOptions
from gpt2np.errors import InvalidArgumentError
from gpt2np.options import options_of
from gpt2np.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpt2np.tokenizer.training_options import TrainingOptions  # slow to import

    add_files_argument(parser, "files", "FILES")
    add_option(parser, TrainingOptions, "vocab_size", required=True)
    add_options(
        parser, TrainingOptions, [n for n in options_of(TrainingOptions) if n != "vocab_size"]
    )
    add_option(parser, DatasetOptions, "field", default=DatasetOptions.field)
    output = parser.add_argument_group("Output").add_argument
    out = "Folder to write; must be new or empty"
    output("--out", type=Path, required=True, metavar="FOLDER", help=out)
    output("--json", action="store_true", help="Print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    from gpt2np.tokenizer.training_options import UNK_TOKEN, TrainingOptions

    options = TrainingOptions(**given_options(args, TrainingOptions))
    if options.alphabet != "bytes":
        options = replace(options, special_tokens=(*options.special_tokens, UNK_TOKEN))
    from gpt2np.checkpoint.convert import check_new_folder
    from gpt2np.data import END_OF_TEXT
    from gpt2np.data.corpus import read_corpus_texts
    from gpt2np.data.files import atomic_folder
    from gpt2np.tokenizer.formats import write_vocabulary
    from gpt2np.tokenizer.training.report import report_training
    from gpt2np.tokenizer.training.train import train

    check_new_folder(args.out)
    files = corpus_files(args.files)
    texts = _with_bar(read_corpus_texts(files, args.field, (END_OF_TEXT, *options.special_tokens)))
    with atomic_folder(args.out.resolve()) as folder:  # an error now, not after training
        with progress_bar(options.vocab_size, "learning", "token") as bar:
            trained = train(texts, options, lambda n_tokens, _: bar.update(n_tokens - bar.n))
        if not trained.piece_counts:
            raise InvalidArgumentError("the files have no text; nothing can be learned")
        write_vocabulary(trained.vocabulary, folder)
    if len(trained.tokens) != options.vocab_size:
        is_smaller = len(trained.tokens) < options.vocab_size
        reason = "no pair is left to merge" if is_smaller else "the alphabet alone has that many"
        print_stderr(f"{len(trained.tokens)} tokens instead of {options.vocab_size}: {reason}")
    print_stderr(f"written to {args.out}")
    report = report_training(trained)
    print(json.dumps(report.to_json(), ensure_ascii=False) if args.json else report.to_text())
    return 0


def _with_bar(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts, with a progress bar that counts their characters."""
    with progress_bar(None, "reading", "character") as bar:
        for text in texts:
            yield text
            bar.update(len(text))
