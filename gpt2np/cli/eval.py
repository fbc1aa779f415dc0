"""Evaluate a model: perplexity, LAMBADA, WikiText or multiple choice.

Every TASK follows a published definition, which 'gpt2np eval TASK --help'
describes.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.evaluation import ProgressCallback, Result
    from gpt2np.language_model import LanguageModel

    Measure = Callable[[LanguageModel, ProgressCallback], Result]

_PERPLEXITY = """Perplexity of texts, with a sliding window.

The model reads a document in windows of K tokens (--context), and each window
starts S tokens (--stride) after the previous one. Each token is scored once, in
the first window that contains it, given the tokens before it in that window.
The first token of a document is not scored; with S = K, neither is the first
token of any window. All scored tokens have the same weight. The program in
Hugging Face's perplexity guide gives overlapping windows slightly less weight
than the first; the second line of the result reproduces it.

In a text file, <|endoftext|> separates documents; line ends next to it are
ignored. A .jsonl file has one document per line, in a field of a JSON object.
Words (separated by white space), bytes and characters are counted in the whole
text; tokens without a score count with the mean score of the others."""

_LAMBADA = """Accuracy on the last word of passages (Paperno et al. 2016).

FILE is a .jsonl file with one passage per line, in a field of a JSON object.

harness      lambada_openai of lm-evaluation-harness. The target is the last
             word with the space before it. It is correct if every token of the
             target is the most likely one. Perplexity is exp of the mean
             negative log probability of a target.
gpt2-paper   The evaluation of the GPT-2 paper, whose code is not public, as far
             as it is known. The target is the last token, which may be part of
             a word. A second accuracy uses a stop-word filter: a stop word with
             a space before it is never predicted. OpenAI's list is not public;
             the default is a list of common English function words."""

_WIKITEXT = """Word and byte perplexity on WikiText.

Follows the task wikitext of lm-evaluation-harness. FILE is a WikiText file as
published (wiki.test.raw), which is split into pages at the titles, or a .jsonl
file with a page in the field "page" of every line. The model reads every page
detokenized, after <|endoftext|>, in consecutive windows of the whole context.
Words and bytes are counted in FILE, before detokenization."""

_CHOICES = """Accuracy on multiple-choice questions.

A line of FILE is {"context": ..., "choices": [text, ...], "answer": index from
0}, or a published record of HellaSwag, ARC or PIQA, which is worded as in
lm-evaluation-harness, without examples. The predicted choice has the highest
log probability (acc of the harness), the highest log probability per character
(acc_norm), or per byte (acc_bytes)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    tasks = parser.add_subparsers(
        title="Tasks", dest="task", metavar="TASK", required=True, parser_class=type(parser)
    )
    for name, (description, add_task_arguments, _, _) in _TASKS.items():
        summary = description.split("\n")[0].removesuffix(".")
        task = tasks.add_parser(name, help=summary, description=description)
        add_task_arguments(task.add_argument)
        _add_common_arguments(task)


def _add_perplexity(add: Callable[..., object]) -> None:
    add("files", nargs="+", type=Path, metavar="FILE", help="Text files (UTF-8) or .jsonl files")
    add("--context", type=int, metavar="K", help="Tokens per window (default: the model's context)")
    add("--stride", type=int, metavar="S", help="Tokens between window starts (default: K / 2)")
    insert = "Insert <|endoftext|> before each document, so that its first token is scored, too"
    add("--from-end-of-text", action="store_true", help=insert)
    add("--field", default="text", help="Field of a .jsonl line (default: text)")


def _add_lambada(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="File of passages (.jsonl)")
    definition = "Definition of the task (default: harness)"
    add("--definition", choices=("harness", "gpt2-paper"), default="harness", help=definition)
    add("--stop-words", type=Path, metavar="FILE", help="Stop words for --definition gpt2-paper")
    add("--field", default="text", help="Field of a line (default: text)")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N passages")


def _add_wikitext(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="WikiText file such as wiki.test.raw, or .jsonl")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N pages")


def _add_choices(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="File of questions (.jsonl)")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N questions")


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    errors = "Report bytes that are not UTF-8 as an error, or read them as U+FFFD (default: strict)"
    parser.add_argument("--errors", choices=("strict", "replace"), default="strict", help=errors)
    output = parser.add_argument_group("Output")
    output.add_argument("--json", action="store_true", help="Print one JSON object")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate the model and print the results; returns the exit code."""
    if getattr(args, "limit", None) is not None and args.limit < 1:
        raise InvalidArgumentError(f"--limit is {args.limit}; it must be at least 1")
    set_threads(args.threads)
    _, _, create_measure, unit = _TASKS[args.task]
    measure = create_measure(args)  # reports invalid files before the model loads
    lm, messages = load_model(args)
    for message in messages:
        print_stderr(message)
    start = time.perf_counter()
    result = _run_with_progress(measure, lm, unit)
    seconds = time.perf_counter() - start
    if result is None:
        return 130
    if args.json:
        content = {"task": args.task, "model": lm.name} | result.to_json()
        print(json.dumps(content | {"seconds": round(seconds, 3)}, ensure_ascii=False), flush=True)
    else:
        print(result.to_text(), flush=True)
        print_stderr(f"{seconds:.1f} s")
    return 0


def _run_with_progress(measure: "Measure", lm: "LanguageModel", unit: str) -> "Result | None":
    """Run an evaluation; after Ctrl-C, print the partial results and return None."""
    from tqdm import tqdm

    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that tqdm closes the bar
    with tqdm(unit=f" {unit}", leave=False, disable=None) as bar:
        progress = f"0 {unit}"

        def update(done: int, total: int, values: Mapping[str, float]) -> None:
            nonlocal progress
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            progress = f"{done:,} of {total:,} {unit}: {metrics}"
            bar.total = total
            bar.set_postfix_str(metrics, refresh=False)
            bar.update(done - bar.n)

        try:
            return measure(lm, update)
        except KeyboardInterrupt:
            pass
    print_stderr(f"interrupted after {progress}")
    return None


def _perplexity(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_documents
    from gpt2np.evaluation.perplexity import perplexity

    files = [read_documents(file, args.errors, args.field) for file in args.files]
    options = {name: getattr(args, name) for name in ("context", "stride", "from_end_of_text")}
    documents = [text for documents in files for text in documents]
    return lambda lm, on_progress: perplexity(lm, documents, **options, on_progress=on_progress)


def _lambada(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_records, read_text, text_field
    from gpt2np.evaluation.lambada import STOP_WORDS, lambada

    words = STOP_WORDS
    if args.stop_words is not None:
        if args.definition == "harness":
            raise InvalidArgumentError("--stop-words is only for --definition gpt2-paper")
        words = frozenset(read_text(args.stop_words, args.errors).lower().split())
    records = islice(read_records(args.file, args.errors), args.limit)
    passages = [text_field(record, args.field, where) for where, record in records]
    options = {"definition": args.definition, "stop_words": words}
    return lambda lm, on_progress: lambada(lm, passages, **options, on_progress=on_progress)


def _wikitext(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_records, read_text, text_field
    from gpt2np.evaluation.perplexity import split_pages, wikitext

    if args.file.suffix == ".jsonl":
        records = islice(read_records(args.file, args.errors), args.limit)
        pages = [text_field(record, "page", where) for where, record in records]
    else:
        pages = split_pages(read_text(args.file, args.errors))[: args.limit]
    return lambda lm, on_progress: wikitext(lm, pages, on_progress)


def _choices(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_records
    from gpt2np.evaluation.multiple_choice import multiple_choice, read_question

    records = islice(read_records(args.file, args.errors), args.limit)
    questions = [read_question(record, where) for where, record in records]
    return lambda lm, on_progress: multiple_choice(lm, questions, on_progress)


_Task = tuple[str, Callable[[Callable[..., object]], None], "Callable[..., Measure]", str]
_TASKS: dict[str, _Task] = {  # description, arguments, measurement, unit of progress
    "perplexity": (_PERPLEXITY, _add_perplexity, _perplexity, "tokens"),
    "lambada": (_LAMBADA, _add_lambada, _lambada, "passages"),
    "wikitext": (_WIKITEXT, _add_wikitext, _wikitext, "pages"),
    "choices": (_CHOICES, _add_choices, _choices, "questions"),
}
