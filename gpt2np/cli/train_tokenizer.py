"""Learn a vocabulary from text.

FILES are text files, .jsonl files (a document in a field of each line), either
also as .gz, folders with such files, and patterns such as 'text/**/*.txt'. In a
text file, documents end at <|endoftext|> and at every other special token.

The vocabulary goes to the folder --out, as files that gpt2np, tokenizers and
transformers read; what it does to the text is printed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.output import print_stderr
from gpt2np.errors import InvalidArgumentError, TokenizerError

if TYPE_CHECKING:
    from gpt2np.data.corpus import CorpusOptions, TextPart
    from gpt2np.tokenizer.training.train import TrainedVocabulary, TrainingOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("files", nargs="+", metavar="FILES", help="files, folders, patterns")
    add("--vocab-size", type=int, required=True, metavar="N", help="tokens in all")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where the vocabulary is written")
    _add_learning_arguments(parser)
    add("--field", default="text", help="of a .jsonl line (default: text)")
    add(
        "--skip-errors",
        action="store_true",
        help="go on after a file that can't be read; what it held before the damage counts",
    )
    add("--json", action="store_true", help="print the report as one JSON object")


def _add_learning_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    rare = "merge no pair that occurs less often (default: 0)"
    add("--min-frequency", type=int, default=0, metavar="N", help=rare)
    add(
        "--max-token-length",
        type=int,
        metavar="N",
        help="merged tokens of three and more bytes (or characters) stay shorter than N, as in "
        "tokenizers; default: no limit",
    )
    add(
        "--special-token",
        action="append",
        metavar="TEXT",
        help="a token that no merge makes and that ends a document; may be given several times "
        "(default: <|endoftext|>, which gpt2np encode needs)",
    )
    add(
        "--pattern",
        default="gpt2",
        metavar="REGEX",
        help="no token crosses its matches; gpt2, cl100k, qwen2, o200k: those of the models; none: "
        "tokens may cross words (default: gpt2)",
    )
    add(
        "--alphabet",
        choices=("bytes", "characters"),
        default="bytes",
        help="what merges begin with (default: bytes)",
    )
    add(
        "--limit-alphabet",
        type=int,
        metavar="N",
        help="with --alphabet characters: only the N most frequent; the rest becomes <unk>",
    )


def run(args: argparse.Namespace) -> int:
    """Train, write, print the report; returns the exit code."""
    options = _training_options(args)
    from gpt2np.data.corpus import find_files
    from gpt2np.tokenizer.formats import write_vocabulary
    from gpt2np.tokenizer.training.report import as_json, as_text, report_training

    if str(args.out) == ".":
        raise InvalidArgumentError("--out is empty or the folder you are in; name another")
    if args.out.exists() and not args.out.is_dir():
        raise InvalidArgumentError(f"--out {args.out} is a file; give a folder")
    if args.out.is_dir() and any(args.out.glob("*.safetensors*")):
        raise InvalidArgumentError(
            f"--out {args.out} holds a model, which needs its own vocabulary; name another"
        )
    files = find_files(args.files)
    _check_writable(args.out)
    corpus = _corpus_options(args, options)
    trained = _train(files, corpus, options, args.skip_errors)
    if not trained.piece_counts:
        raise InvalidArgumentError("there is no text in the files; nothing can be learned")
    if len(trained.tokens) != options.vocab_size:
        short = len(trained.tokens) < options.vocab_size
        why = "no pair is left to merge" if short else "the alphabet alone has so many"
        print_stderr(f"{len(trained.tokens)} tokens instead of {options.vocab_size}: {why}")
    write_vocabulary(trained.vocabulary, args.out)
    print_stderr(f"written to {args.out}")
    blocks = _blocks(files, corpus, skip_errors=args.skip_errors, told=True)
    report = report_training(trained, _with_bar(blocks, "measuring"))
    print(json.dumps(as_json(report), ensure_ascii=False) if args.json else as_text(report))
    return 0


def _check_writable(folder: Path) -> None:
    """Refuse an output that can't be made before the work begins; what is tried is removed."""
    from tempfile import TemporaryDirectory

    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidArgumentError(f"can't write to --out {folder}: {nearest} is no folder")
    try:
        TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise TokenizerError(f"can't write to --out {folder}: {error.strerror}") from error


def _train(
    files: list[Path], corpus: "CorpusOptions", options: "TrainingOptions", skip_errors: bool
) -> "TrainedVocabulary":
    from tqdm import tqdm

    from gpt2np.tokenizer.training.train import train

    blocks = _with_bar(_blocks(files, corpus, skip_errors), "reading")
    with tqdm(desc="learning", unit=" tokens", disable=None, total=options.vocab_size) as bar:

        def progress(tokens: int, _: int) -> None:
            bar.update(tokens - bar.n)

        return train((block.text for block in blocks), options, progress)


def _blocks(
    files: list[Path], corpus: "CorpusOptions", skip_errors: bool, told: bool = False
) -> "Iterator[TextPart]":
    """The text; with `told` what is skipped has been told before."""
    from gpt2np.data.corpus import UnreadableFileError, read_parts

    def skip(error: UnreadableFileError) -> None:
        if not told:
            print_stderr(f"skipped: {error}")

    return read_parts(files, corpus, skip if skip_errors else None)


def _with_bar(blocks: "Iterator[TextPart]", what: str) -> "Iterator[TextPart]":
    from tqdm import tqdm

    with tqdm(desc=what, unit=" characters", unit_scale=True, disable=None) as bar:
        for block in blocks:
            yield block
            bar.update(len(block.text))


def _training_options(args: argparse.Namespace) -> "TrainingOptions":
    from gpt2np.tokenizer.split import PATTERN_NAMES
    from gpt2np.tokenizer.training.train import UNKNOWN, TrainingOptions
    from gpt2np.tokenizer.vocabulary import END_OF_TEXT

    special = args.special_token or [END_OF_TEXT]
    return TrainingOptions(
        vocab_size=args.vocab_size,
        min_frequency=args.min_frequency,
        max_token_length=args.max_token_length,
        special_tokens=(*special, UNKNOWN) if args.alphabet == "characters" else tuple(special),
        pattern={**PATTERN_NAMES, "none": None}.get(args.pattern.lower(), args.pattern),
        alphabet=args.alphabet,
        limit_alphabet=args.limit_alphabet,
    )


def _corpus_options(args: argparse.Namespace, options: "TrainingOptions") -> "CorpusOptions":
    from gpt2np.data.corpus import CorpusOptions
    from gpt2np.tokenizer.chunks import BEFORE_LINES
    from gpt2np.tokenizer.vocabulary import END_OF_TEXT

    return CorpusOptions(
        separators=(END_OF_TEXT, *options.special_tokens),
        field=args.field,
        split_long_documents=options.pattern in BEFORE_LINES,
    )
