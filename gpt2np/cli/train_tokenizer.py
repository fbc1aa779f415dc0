"""Train a vocabulary on text.

FILES are text files, files with a document per line or row, folders of such
files, or patterns such as 'text/**/*.txt'. <|endoftext|> and every other
special token separate documents.

The vocabulary is written to the folder --out, in files that gpt2np, tokenizers
and transformers read. A report shows how well it compresses the text.
"""

import argparse
import json
import os
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
    out = "Folder for the vocabulary"
    output("--out", type=_folder, required=True, metavar="FOLDER", help=out)
    output("--force", action="store_true", help="Replace a vocabulary in the folder of --out")
    output("--json", action="store_true", help="Print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    from gpt2np.tokenizer.training_options import UNK_TOKEN, TrainingOptions

    options = TrainingOptions(**given_options(args, TrainingOptions))
    if options.alphabet != "bytes":
        options = replace(options, special_tokens=(*options.special_tokens, UNK_TOKEN))
    from gpt2np.data import END_OF_TEXT
    from gpt2np.data.corpus import read_corpus_texts
    from gpt2np.hub.model_files import VOCABULARY_EXTRAS, VOCABULARY_FILES
    from gpt2np.tokenizer.formats import write_vocabulary
    from gpt2np.tokenizer.training.report import report_training
    from gpt2np.tokenizer.training.train import train

    written = [args.out / name for name in (*VOCABULARY_FILES, *VOCABULARY_EXTRAS)]
    _check_out(args.out, [] if args.force else written)
    # Without the output: a second run must not train on the vocabulary of the first run.
    files = corpus_files(args.files, written, args.field)
    separators = (END_OF_TEXT, *options.special_tokens)
    texts = _with_bar(read_corpus_texts(files, args.field, separators))
    with progress_bar(options.vocab_size, "learning", "token") as bar:
        trained = train(texts, options, lambda n_tokens, _: bar.update(n_tokens - bar.n))
    if not trained.piece_counts:
        raise InvalidArgumentError("the files have no text; nothing can be learned")
    if len(trained.tokens) != options.vocab_size:
        is_smaller = len(trained.tokens) < options.vocab_size
        reason = "no pair is left to merge" if is_smaller else "the alphabet alone has that many"
        print_stderr(f"{len(trained.tokens)} tokens instead of {options.vocab_size}: {reason}")
    write_vocabulary(trained.vocabulary, args.out)
    print_stderr(f"written to {args.out}")
    report = report_training(trained)
    print(json.dumps(report.to_json(), ensure_ascii=False) if args.json else report.to_text())
    return 0


def _folder(text: str) -> Path:
    """Return a path without `..`, which is no name for a new folder."""
    path = Path(text)
    return path.resolve() if ".." in path.parts else path


def _with_bar(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts, with a progress bar that counts their characters."""
    with progress_bar(None, "reading", "character") as bar:
        for text in texts:
            yield text
            bar.update(len(text))


def _check_out(out: Path, protected: Iterable[Path]) -> None:
    """Raise an error if `out` can't hold a new vocabulary, or a file in `protected` exists."""
    if out in (Path(), Path("-")):
        raise InvalidArgumentError(f"--out is {str(out)!r}; name a new folder")
    if (out.exists() or out.is_symlink()) and not out.is_dir():
        raise InvalidArgumentError(f"--out {out} is not a folder; choose another name")
    if out.is_dir() and any(out.glob("*.safetensors*")):
        raise InvalidArgumentError(
            f"--out {out} holds a model, which needs its own vocabulary; choose another"
        )
    if existing := sorted(path.name for path in protected if path.exists()):
        raise InvalidArgumentError(
            f"--out {out} has a vocabulary already ({', '.join(existing)}); give --force to "
            "replace it"
        )
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        reason = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise InvalidArgumentError(f"cannot write to --out {out}: {nearest} {reason}")
