"""Evaluate a model: perplexity, LAMBADA, WikiText or multiple choice.

The 'perplexity' task follows Hugging Face's guide to perplexity; the other
tasks follow lm-evaluation-harness. For details, see 'gpt2np eval TASK --help'.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.declared_options import add_options, given_options
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr, progress
from gpt2np.cli.text_input import check_field, spool_stdin
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.evaluation import Result
    from gpt2np.language_model import LanguageModel

    Measure = Callable[..., Result]  # of a model and `on_progress`
    InputsAndMeasure = tuple[Sequence[object], Measure]

_PERPLEXITY = """Perplexity of texts, with a sliding window.

The model reads a document in windows of K tokens (--context). Each window
starts S tokens (--stride) after the start of the previous window. Each token is
scored once, in the first window that contains the token. The score depends on
the earlier tokens of that window. The first token of a document is not scored,
except with --from-end-of-text. If S = K, the first token of every later window
is not scored, either.

In the first line of the result, all scored tokens have the same weight. The
second line reproduces the program in Hugging Face's perplexity guide, where
tokens of later windows have slightly less weight.

In a text file, <|endoftext|> separates documents, and line breaks next to
<|endoftext|> are ignored. A .jsonl file has a JSON object per line; --field
names the field with the document.

Perplexity per word, perplexity per byte and bits per character cover the whole
text: each token that is not scored is assumed to have the mean score. White
space separates words."""

_LAMBADA = """Accuracy on the last word of passages (Paperno et al. 2016).

FILE is a .jsonl file with a JSON object per line; --field names the field with
the passage.

harness      The task lambada_openai of lm-evaluation-harness. The target is the
             last word, including the space before the word. A prediction is
             correct if each token of the target is the most likely token.
             Perplexity is exp of the mean negative log probability of the
             targets.
gpt2-paper   The evaluation of the GPT-2 paper, as far as it is known: the code
             is not public. The target is the last token, which may be only a
             part of a word. For a second accuracy, the model never
             predicts a space followed by a stop word. OpenAI's list of stop
             words is not public; the default of --stop-words is a list of
             common English function words."""

_WIKITEXT = """Word and byte perplexity on WikiText.

The evaluation follows lm-evaluation-harness's task 'wikitext'. FILE is a
published WikiText file such as wiki.test.raw, or a .jsonl file. A WikiText file
is split into pages at the titles. Each line of a .jsonl file is a JSON object;
--field names the field with the text of one page.

In WikiText, spaces surround punctuation. The model reads each page without
these spaces (detokenized), and with <|endoftext|> before the page. Each page is
read in consecutive windows; a window has the length of the model's context.
Words and bytes are counted before detokenization."""

_CHOICES = """Accuracy on multiple-choice questions.

A line of FILE is {"context": ..., "choices": [text, ...], "answer": index from
0}, or a published record of HellaSwag, ARC or PIQA. A space separates the
context from each choice. The prompt for a published record is worded as in
lm-evaluation-harness, without examples (zero-shot).

The result has three accuracies, named as in the harness. They differ in which
choice counts as the model's answer:

acc         the choice with the highest log probability
acc_norm    the choice with the highest log probability per character
acc_bytes   the choice with the highest log probability per byte"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(
        title="Tasks", dest="task", metavar="TASK", required=True, parser_class=type(parser)
    )
    for name, (description, add_task_arguments, _, _) in _TASKS.items():
        summary = description.split("\n")[0].removesuffix(".")
        task = tasks.add_parser(name, help=summary, description=description)
        add_task_arguments(task)
        errors = "For bytes that are not UTF-8: report an error (strict), or replace them with "
        errors += "U+FFFD (replace)"
        task.add_argument("--errors", choices=("strict", "replace"), default="strict",
            help=f"{errors} (default: strict)")  # fmt: skip
        output = task.add_argument_group("Output").add_argument
        output("--json", action="store_true", help="Print the result as one JSON object")
        add_model_arguments(task, "dtype", "exact", "weights", "processes")


def _add_perplexity(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    files = "Text file (UTF-8) or .jsonl file, or '-' to read text from standard input"
    add("files", nargs="+", type=Path, metavar="FILE", help=files)
    add_options(task, ScoreOptions, ("context", "stride"))
    insert = (
        "Insert <|endoftext|> before each document, so that the document's first token is scored"
    )
    add("--from-end-of-text", action="store_true", help=insert)
    add("--field", default="text", help="In .jsonl files, the field with the text (default: text)")


def _add_lambada(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    add("files", nargs=1, type=Path, metavar="FILE", help=".jsonl file with one passage per line")
    definition = "Predict the last word (harness) or the last token (gpt2-paper) (default: harness)"
    add("--definition", choices=("harness", "gpt2-paper"), default="harness", help=definition)
    stop_words = "File of stop words, which gpt2-paper excludes from its second accuracy"
    stop_words = f"{stop_words} (default: English function words)"
    add("--stop-words", type=Path, metavar="FILE", help=stop_words)
    add("--field", default="text", help="JSON field with the passage (default: text)")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N passages")


def _add_wikitext(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    file = "WikiText file, or .jsonl file with one page per line"
    add("files", nargs=1, type=Path, metavar="FILE", help=file)
    add("--field", default="page", help="JSON field with the page (default: page)")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N pages")


def _add_choices(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    add("files", nargs=1, type=Path, metavar="FILE", help=".jsonl file with one question per line")
    add("--limit", type=int, metavar="N", help="Evaluate only the first N questions")


def run(args: argparse.Namespace) -> int:
    for name in ("limit", "context", "stride"):
        value = getattr(args, name, None)
        check_argument(value is None or value >= 1, name, value, "at least 1")
        vars(args)[name] = None if value is None else min(value, sys.maxsize)
    set_threads(args.threads)
    args.files = [*map(spool_stdin, args.files)]
    _, _, create_measure, unit = _TASKS[args.task]
    inputs, measure = create_measure(args)  # reports invalid files before the model loads
    if not inputs:
        raise InvalidArgumentError(f"there are no {unit}; give a file that is not empty")
    lm = load_model(args)
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
    """Run an evaluation with a progress bar. After Ctrl-C, print the progress and return None."""
    with progress(unit=f" {unit}") as bar:
        state = f"0 {unit}"

        def update(done: int, total: int, values: Mapping[str, float]) -> None:
            nonlocal state
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            state = f"{done:,} of {total:,} {unit}: {metrics}"
            bar.total = total
            bar.set_postfix_str(metrics, refresh=False)
            bar.update(done - bar.n)

        try:
            return measure(lm, on_progress=update)
        except KeyboardInterrupt:
            pass
    print_stderr(f"interrupted after {state}")
    return None


def _perplexity(args: argparse.Namespace) -> "InputsAndMeasure":
    from gpt2np.data.corpus import plain_text_notice
    from gpt2np.evaluation.documents import read_all_documents
    from gpt2np.evaluation.perplexity import perplexity

    if folder := next((file for file in args.files if file.is_dir()), None):
        raise InvalidArgumentError(f"{folder} is a folder; give files, or use gpt2np score")
    check_field(args.field, args.files)
    if notice := plain_text_notice(args.files):
        print_stderr(notice)
    files = [read_all_documents(file, args.errors, args.field) for file in args.files]
    options = given_options(args, ScoreOptions)
    del options["field"]
    documents = [*chain(*files)]
    return documents, partial(perplexity, documents=documents, **options)


def _lambada(args: argparse.Namespace) -> "InputsAndMeasure":
    from gpt2np.data.corpus import text_field
    from gpt2np.evaluation.documents import read_records, read_text
    from gpt2np.evaluation.lambada import STOP_WORDS, lambada

    words = STOP_WORDS
    if args.stop_words is not None:
        if args.definition == "harness":
            raise InvalidArgumentError("--stop-words is only for --definition gpt2-paper")
        words = frozenset(read_text(args.stop_words, args.errors).lower().split())
        if not words:
            raise InvalidArgumentError(f"--stop-words {args.stop_words} has no words")
    records = islice(read_records(args.files[0], args.errors), args.limit)
    passages = [text_field(record, args.field, where) for where, record in records]
    definition = args.definition
    return passages, partial(lambada, passages=passages, definition=definition, stop_words=words)


def _wikitext(args: argparse.Namespace) -> "InputsAndMeasure":
    from gpt2np.data.corpus import text_field
    from gpt2np.evaluation.documents import read_records, read_text
    from gpt2np.evaluation.perplexity import split_pages, wikitext

    if args.files[0].suffix == ".jsonl":
        records = islice(read_records(args.files[0], args.errors), args.limit)
        pages = [text_field(record, args.field, where) for where, record in records]
    else:
        if args.field != "page":
            raise InvalidArgumentError("--field is for .jsonl files; there is none to read")
        pages = split_pages(read_text(args.files[0], args.errors))[: args.limit]
    return [page for page in pages if page.strip()], partial(wikitext, pages=pages)


def _choices(args: argparse.Namespace) -> "InputsAndMeasure":
    from gpt2np.evaluation.documents import read_records
    from gpt2np.evaluation.multiple_choice import multiple_choice, read_question

    records = islice(read_records(args.files[0], args.errors), args.limit)
    questions = [read_question(record, where) for where, record in records]
    return questions, partial(multiple_choice, questions=questions)


_Task = tuple[
    str, Callable[[argparse.ArgumentParser], None], "Callable[..., InputsAndMeasure]", str
]
_TASKS: dict[str, _Task] = {  # description, arguments, measurement, unit of progress
    "perplexity": (_PERPLEXITY, _add_perplexity, _perplexity, "tokens"),
    "lambada": (_LAMBADA, _add_lambada, _lambada, "passages"),
    "wikitext": (_WIKITEXT, _add_wikitext, _wikitext, "pages"),
    "choices": (_CHOICES, _add_choices, _choices, "questions"),
}
