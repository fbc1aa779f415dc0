"""Train a vocabulary on text.

FILES are text files, .jsonl files (one document per line), folders of such
files, or patterns such as 'text/**/*.txt'. The files may be compressed (.gz).
<|endoftext|> and every other special token separate documents.

The vocabulary is written to the folder --out, in files that gpt2np, tokenizers
and transformers read. A report shows how well the vocabulary compresses the
text.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.output import check_not_hidden, print_stderr, progress, write_errors
from gpt2np.cli.text_input import check_field, spool_stdin
from gpt2np.errors import InvalidArgumentError, TokenizerError, error_reason

if TYPE_CHECKING:
    from gpt2np.data.corpus import CorpusOptions, TextPart
    from gpt2np.tokenizer.training.train import TrainedVocabulary, TrainingOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILES",
        help="Files, folders or patterns to read; - reads text from standard input",
    )
    add(
        "--vocab-size",
        type=int,
        required=True,
        metavar="N",
        help="Number of tokens in the vocabulary",
    )
    _add_training_arguments(add)
    field = "In .jsonl, .csv and .parquet files, the field or column with the text (default: text)"
    add("--field", default="text", help=field)
    add("--skip-errors", action="store_true", help="Skip the rest of a file that cannot be read")
    output = parser.add_argument_group("Output").add_argument
    output("--out", type=Path, required=True, metavar="FOLDER", help="Folder for the vocabulary")
    output("--force", action="store_true", help="Replace a vocabulary in the folder of --out")
    output("--json", action="store_true", help="Print the report as one JSON object")


def _add_training_arguments(add: Callable[..., object]) -> None:
    min_frequency = "Merge only pairs that occur at least N times (default: 0)"
    add("--min-frequency", type=int, default=0, metavar="N", help=min_frequency)
    add(
        "--max-token-length",
        type=int,
        metavar="N",
        help="Create only tokens shorter than N bytes, or N characters with --alphabet characters; "
        "as in Hugging Face's tokenizers, length 2 is always allowed (default: no limit)",
    )
    add(
        "--special-token",
        action="append",
        metavar="TEXT",
        help="Special token, which separates documents; may be given several times (default: "
        "<|endoftext|>, which gpt2np encode needs)",
    )
    add(
        "--pattern",
        default="gpt2",
        metavar="REGEX",
        help="Pattern of the pre-tokenizer: gpt2, cl100k, qwen2 or o200k for a known pattern, a "
        "regular expression, or none to merge across words (default: gpt2)",
    )
    alphabet = "Initial tokens: all 256 bytes, or the characters of the text (default: bytes)"
    add("--alphabet", choices=("bytes", "characters"), default="bytes", help=alphabet)
    limit = "With --alphabet characters: keep only the N most frequent; others become <unk>"
    add("--limit-alphabet", type=int, metavar="N", help=limit)


def run(args: argparse.Namespace) -> int:
    """Train and write a vocabulary, print the report and return the exit code."""
    options = _training_options(args)
    from gpt2np.data.corpus import find_files
    from gpt2np.hub.model_files import VOCABULARY_EXTRAS, VOCABULARY_FILES
    from gpt2np.tokenizer.formats import write_vocabulary
    from gpt2np.tokenizer.training.report import as_json, as_text, report_training

    written = [args.out / name for name in (*VOCABULARY_FILES.names, *VOCABULARY_EXTRAS)]
    _check_out(args.out, [] if args.force else written)
    # Without the output: a second run must not train on the vocabulary of the first run.
    files = find_files(map(spool_stdin, args.files), written, print_stderr)
    check_field(args.field, files)
    _check_writable(args.out)
    corpus = _corpus_options(args, options)
    trained = _train(files, corpus, options, args.skip_errors)
    if not trained.piece_counts:
        raise InvalidArgumentError("the files have no text; nothing can be learned")
    if len(trained.tokens) != options.vocab_size:
        is_smaller = len(trained.tokens) < options.vocab_size
        reason = "no pair is left to merge" if is_smaller else "the alphabet alone has that many"
        print_stderr(f"{len(trained.tokens)} tokens instead of {options.vocab_size}: {reason}")
    with write_errors(args.out):
        write_vocabulary(trained.vocabulary, args.out)
    print_stderr(f"written to {args.out}")
    parts = _read_parts(files, corpus, skip_errors=args.skip_errors, quiet=True)
    report = report_training(trained, _with_progress_bar(parts, "measuring"))
    print(json.dumps(as_json(report), ensure_ascii=False) if args.json else as_text(report))
    return 0


def _check_out(out: Path, protected: Iterable[Path]) -> None:
    """Raise an error if `out` can't hold a new vocabulary, or a file in `protected` exists."""
    if str(out) == ".":
        raise InvalidArgumentError("--out is empty or the current folder; choose another")
    if str(out) == "-":
        raise InvalidArgumentError("--out is -, but several files are written; name a folder")
    check_not_hidden(out, [])
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


def _check_writable(folder: Path) -> None:
    """Raise an error if `folder` cannot be created or written. Called before the training."""
    from tempfile import TemporaryDirectory

    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidArgumentError(f"cannot write to --out {folder}: {nearest} is not a folder")
    try:
        TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise TokenizerError(f"cannot write to --out {folder}: {error_reason(error)}") from error


def _train(
    files: list[Path], corpus: "CorpusOptions", options: "TrainingOptions", skip_errors: bool
) -> "TrainedVocabulary":
    from gpt2np.tokenizer.training.train import train

    parts = _with_progress_bar(_read_parts(files, corpus, skip_errors), "reading")
    with progress(desc="learning", unit=" tokens", leave=True, total=options.vocab_size) as bar:

        def on_progress(n_tokens: int, _: int) -> None:
            bar.update(n_tokens - bar.n)

        return train((part.text for part in parts), options, on_progress)


def _read_parts(
    files: list[Path], corpus: "CorpusOptions", skip_errors: bool, quiet: bool = False
) -> "Iterator[TextPart]":
    """Yield the text of the files. `quiet` suppresses the messages about skipped files."""
    from gpt2np.data.corpus import UnreadableFileError, read_parts

    def on_skip(error: UnreadableFileError) -> None:
        if not quiet:
            print_stderr(f"skipped: {error}")

    return read_parts(files, corpus, on_skip if skip_errors else None)


def _with_progress_bar(parts: "Iterator[TextPart]", description: str) -> "Iterator[TextPart]":
    with progress(desc=description, unit=" characters", unit_scale=True, leave=True) as bar:
        for part in parts:
            yield part
            bar.update(len(part.text))


def _training_options(args: argparse.Namespace) -> "TrainingOptions":
    from gpt2np.data import END_OF_TEXT
    from gpt2np.tokenizer.pre_tokenizer import PATTERN_NAMES
    from gpt2np.tokenizer.training.train import UNK_TOKEN, TrainingOptions

    patterns = {**PATTERN_NAMES, "none": None}
    pattern = patterns.get(args.pattern.lower(), args.pattern)
    if pattern == "" or (pattern == args.pattern and pattern.isalnum()):
        raise InvalidArgumentError(
            f"--pattern is {args.pattern!r}; it must be {', '.join(patterns)}, or a regular "
            "expression"
        )
    special = args.special_token or [END_OF_TEXT]
    return TrainingOptions(
        vocab_size=args.vocab_size,
        min_frequency=args.min_frequency,
        max_token_length=args.max_token_length,
        special_tokens=(*special, UNK_TOKEN) if args.alphabet == "characters" else tuple(special),
        pattern=pattern,
        alphabet=args.alphabet,
        limit_alphabet=args.limit_alphabet,
    )


def _corpus_options(args: argparse.Namespace, options: "TrainingOptions") -> "CorpusOptions":
    from gpt2np.data import END_OF_TEXT
    from gpt2np.data.corpus import CorpusOptions
    from gpt2np.tokenizer.pre_tokenizer import WHITESPACE_SPLITTING_PATTERNS

    return CorpusOptions(
        separators=(END_OF_TEXT, *options.special_tokens),
        field=args.field,
        split_long_documents=options.pattern in WHITESPACE_SPLITTING_PATTERNS,
    )
