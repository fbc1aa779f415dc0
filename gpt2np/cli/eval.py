"""Measure how well a model predicts, by definitions that others use.

perplexity   of texts, as in Hugging Face's guide for models of fixed length
lambada      the last word of passages: lm-evaluation-harness's lambada_openai
wikitext     lm-evaluation-harness's wikitext, per word and byte
choices      multiple choice: lm-evaluation-harness's acc and acc_norm

'gpt2np eval TASK --help' tells what exactly is computed.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.model_and_prompt import add_model_arguments, load_model
from gpt2np.cli.streams import notice
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.evaluation.result import ProgressCallback, Result
    from gpt2np.language_model import LanguageModel

    Measure = Callable[[LanguageModel, ProgressCallback], Result]

_PERPLEXITY = """Perplexity of texts.

A document is read in windows of K tokens (--context), each S (--stride) further
on. Of each window those tokens count that no window before it had, each after
the tokens before it in the window; a document's first token does not count,
nor, with S = K, the first of any window. Every token that counts weighs the
same; the program in Hugging Face's guide weighs overlapping windows a little
less than the first, which the second line of the result does, too.

In a text file documents end at <|endoftext|>; line ends beside it belong to
none, all else is text. A .jsonl file has a document in a field of each line.
Words (runs of what is not white space), bytes and characters are those of all
the text; the tokens that don't count are taken to be as hard as the others."""

_LAMBADA = """The last word of passages (Paperno et al. 2016).

FILE is JSON Lines with a passage in a field of each line. Definitions:

harness      lm-evaluation-harness's lambada_openai. The target is what follows
             the last space, and that space. It is right if each of its tokens
             is the likeliest; perplexity is exp of the mean negative log
             probability of a target.
gpt2-paper   what is publicly known of GPT-2's own evaluation, whose program was
             not published: the target is the last token, which need not be a
             whole word. A second accuracy is that with a stop-word filter: a
             token that is one of these words, with a space before it, is not
             predicted. OpenAI's list is not known; without --stop-words a list
             of common English function words is taken."""

_WIKITEXT = """WikiText by lm-evaluation-harness's definition.

FILE is a file of WikiText as it is published (wiki.test.raw), which is cut into
pages at their titles; or JSON Lines with a page in the field "page". The model
reads the pages detokenized, each after <|endoftext|>, in windows of its whole
context that follow on each other. Words and bytes are those of the file's own
text, before it is detokenized."""

_CHOICES = """Multiple choice: which answer is likeliest to follow on the question?

A line of FILE is {"context": ..., "choices": [text, ...], "answer": number from
0}, or a record of HellaSwag, ARC or PIQA as published, which is worded as in
lm-evaluation-harness's tasks (with no examples before it). Accuracy by the sum
of an answer's log probabilities (the harness's acc), by the sum divided by its
characters (acc_norm), and by its bytes (acc_bytes)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    tasks = parser.add_subparsers(
        dest="task", metavar="TASK", required=True, parser_class=type(parser)
    )
    for name, description, add_own in (
        ("perplexity", _PERPLEXITY, _add_perplexity),
        ("lambada", _LAMBADA, _add_lambada),
        ("wikitext", _WIKITEXT, _add_wikitext),
        ("choices", _CHOICES, _add_choices),
    ):
        task = tasks.add_parser(
            name,
            help=description.split("\n")[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_own(task.add_argument)
        _add_common(task)


def _add_perplexity(add: Callable[..., object]) -> None:
    add("files", nargs="+", type=Path, metavar="FILE", help="texts (UTF-8), or .jsonl files")
    add("--context", type=int, metavar="K", help="tokens of a window (default: the model's)")
    add("--stride", type=int, metavar="S", help="between windows; K: no overlap (default: K / 2)")
    add(
        "--from-end-of-text",
        action="store_true",
        help="put an <|endoftext|> before each document, so that its first token counts, too",
    )
    add("--field", default="text", help="of a .jsonl line (default: text)")


def _add_lambada(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="passages, .jsonl")
    add(
        "--definition",
        choices=("harness", "gpt2-paper"),
        default="harness",
        help="what is computed (default: harness)",
    )
    add("--stop-words", type=Path, metavar="FILE", help="words for gpt2-paper's filter")
    add("--field", default="text", help="of a line (default: text)")
    add("--limit", type=int, metavar="N", help="only the first N passages")


def _add_wikitext(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="wiki.test.raw or the like, or .jsonl")
    add("--limit", type=int, metavar="N", help="only the first N pages")


def _add_choices(add: Callable[..., object]) -> None:
    add("file", type=Path, metavar="FILE", help="questions, .jsonl")
    add("--limit", type=int, metavar="N", help="only the first N questions")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add(
        "--errors",
        choices=("strict", "replace"),
        default="strict",
        help="what is not UTF-8 is an error, or read as U+FFFD (default: strict)",
    )
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    if getattr(args, "limit", None) is not None and args.limit < 1:
        raise InvalidArgumentError(f"--limit is {args.limit}; it must be at least 1")
    set_threads(args.threads)
    measure = _TASKS[args.task](args)  # what is wrong with the files is told before a model loads
    lm, told = load_model(args)
    for line in told:
        notice(line)

    start = time.perf_counter()
    result = _watched(measure, lm, _UNITS[args.task])
    seconds = time.perf_counter() - start
    if result is None:
        return 130
    if args.json:
        content = {"task": args.task, "model": lm.name} | result.to_json()
        print(json.dumps(content | {"seconds": round(seconds, 3)}, ensure_ascii=False), flush=True)
    else:
        print(result.to_text(), flush=True)
        notice(f"{seconds:.1f} s")
    return 0


def _watched(measure: "Measure", lm: "LanguageModel", unit: str) -> "Result | None":
    """The result; None after Ctrl-C, when the values so far have been told."""
    from tqdm import tqdm

    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is a bar to end
    with tqdm(unit=f" {unit}", leave=False, disable=None) as bar:
        so_far = "the first of them"

        def tell(done: int, total: int, values: Mapping[str, float]) -> None:
            nonlocal so_far
            told = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            so_far = f"{done:,} of {total:,} {unit}: {told}"
            bar.total = total
            bar.set_postfix_str(told, refresh=False)
            bar.update(done - bar.n)

        try:
            return measure(lm, tell)
        except KeyboardInterrupt:
            pass
    notice(f"interrupted after {so_far}")
    return None


def _perplexity(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_documents
    from gpt2np.evaluation.perplexity import perplexity

    files = [read_documents(file, args.errors, args.field) for file in args.files]
    options = {name: getattr(args, name) for name in ("context", "stride", "from_end_of_text")}
    documents = [text for documents in files for text in documents]
    return lambda lm, tell: perplexity(lm, documents, **options, on_progress=tell)


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
    return lambda lm, tell: lambada(lm, passages, **options, on_progress=tell)


def _wikitext(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_records, read_text, text_field
    from gpt2np.evaluation.wikitext import split_pages, wikitext

    if args.file.suffix == ".jsonl":
        records = islice(read_records(args.file, args.errors), args.limit)
        pages = [text_field(record, "page", where) for where, record in records]
    else:
        pages = split_pages(read_text(args.file, args.errors))[: args.limit]
    return lambda lm, tell: wikitext(lm, pages, tell)


def _choices(args: argparse.Namespace) -> "Measure":
    from gpt2np.evaluation.documents import read_records
    from gpt2np.evaluation.multiple_choice import multiple_choice, read_question

    records = islice(read_records(args.file, args.errors), args.limit)
    questions = [read_question(record, where) for where, record in records]
    return lambda lm, tell: multiple_choice(lm, questions, tell)


_TASKS: "dict[str, Callable[[argparse.Namespace], Measure]]" = {
    "perplexity": _perplexity,
    "lambada": _lambada,
    "wikitext": _wikitext,
    "choices": _choices,
}
_UNITS = {
    "perplexity": "tokens",
    "lambada": "passages",
    "wikitext": "pages",
    "choices": "questions",
}
