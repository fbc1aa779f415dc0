r"""Show how texts become tokens.

Every TEXT is a text of its own; without one, standard input is read (as with
-), without one newline at its end. --file reads a whole file, as it is but for
a byte-order mark. Of the model only the vocabulary is needed, and fetched.

What can't be seen is written as in Python: "\n" for a line end, "\xf0" for a
byte of a character that is spread over several tokens.
"""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import decode_argument, read_stdin, read_text_file
from gpt2np.cli.vocabulary import add_model_argument, load_tokenizer
from gpt2np.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer
    from gpt2np.tokenizer.layout import Style

MERGES_LEGEND = (
    "numbers: the rank of the pair of tokens around them; [in brackets]: the lowest, which is "
    "merged next; –: no merge joins them"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="the text; - for standard input")
    add("--file", type=Path, metavar="FILE", help="read the text from a file (UTF-8)")
    add_model_argument(parser)
    shown = parser.add_mutually_exclusive_group()
    for option, meaning in (
        ("ids", "print only the ids, a line for each text"),
        ("count", "print only how many tokens, a line for each text"),
        ("offsets", "print where in the text each token is, in characters and in bytes"),
    ):
        shown.add_argument(f"--{option}", action="store_true", help=meaning)
    add("--merges", action="store_true", help="print every merge, step by step")
    add("--json", action="store_true", help="print one JSON object for each text")
    add(
        "--special",
        choices=("error", "allow", "text"),
        default="error",
        help="a special token in the text, such as <|endoftext|>, is an error, that token, or "
        "plain text (default: error)",
    )


def run(args: argparse.Namespace) -> int:
    """Tokenize and print; returns the exit code."""
    _check(args)
    texts = _texts(args)
    tokenizer, which = load_tokenizer(args.model)
    if args.special == "error":
        _refuse_special_tokens(texts, tokenizer)
    options = {"allowed_special": "all"} if args.special == "allow" else {"disallowed_special": ()}
    shown = [_shown(text, tokenizer, options, args) for text in texts]
    print_stderr(which)
    in_lines = args.ids or args.count or args.json
    if args.merges and not in_lines:
        print_stderr(MERGES_LEGEND)
    print(("\n" if in_lines else "\n\n").join(shown), flush=True)
    if not (in_lines or args.merges or args.offsets):
        print_stderr(_summary(texts, sum(tokenizer.count(text, **options) for text in texts)))
    return 0


def _summary(texts: list[str], tokens: int) -> str:
    text = "".join(texts)
    return f"{tokens:,} tokens, {len(text):,} characters, {len(text.encode()):,} bytes"


def _shown(
    text: str, tokenizer: "Tokenizer", options: dict[str, Any], args: argparse.Namespace
) -> str:
    if args.json:
        content = _as_json(text, tokenizer, options, with_merges=args.merges)
        return json.dumps(content, ensure_ascii=False)
    ids = tokenizer.encode(text, **options)
    if args.ids or args.count:
        return " ".join(map(str, ids)) if args.ids else str(len(ids))
    return _for_the_eye(text, ids, tokenizer, options, args)


def _for_the_eye(
    text: str,
    ids: list[int],
    tokenizer: "Tokenizer",
    options: dict[str, Any],
    args: argparse.Namespace,
) -> str:
    from gpt2np.tokenizer.layout import merge_table, offset_table, token_rows

    style = _style()
    if args.merges:
        pieces = tokenizer.explain(text, **options)
        return "\n\n".join(merge_table(piece, tokenizer.vocabulary, style) for piece in pieces)
    tokens = [tokenizer.vocabulary.token_bytes[number] for number in ids]
    if args.offsets:
        return offset_table(tokenizer.offsets(text, **options), tokens, style)
    return token_rows(tokens, ids, shutil.get_terminal_size().columns, style)


def _as_json(
    text: str, tokenizer: "Tokenizer", options: dict[str, Any], *, with_merges: bool
) -> dict[str, Any]:
    """A token that is not text by itself has its bytes as in Python, as it has for the eye."""
    spans = tokenizer.offsets(text, **options)
    table = tokenizer.vocabulary.token_bytes
    pieces = tokenizer.explain(text, **options) if with_merges else []
    content = {
        "text": text,
        "ids": [span.id for span in spans],
        "tokens": [table[span.id].decode("utf-8", "backslashreplace") for span in spans],
        "offsets": [[span.start, span.end] for span in spans],
        "byte_offsets": [[span.byte_start, span.byte_end] for span in spans],
    }
    return content | ({"pieces": [asdict(piece) for piece in pieces]} if with_merges else {})


def _style() -> "Style":
    from gpt2np.tokenizer.layout import Style

    return Style(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def _check(args: argparse.Namespace) -> None:
    chosen = [f"--{name}" for name in ("ids", "count", "offsets") if getattr(args, name)]
    if chosen and (args.merges or args.json):
        other = "--merges" if args.merges else "--json"
        raise InvalidArgumentError(f"{chosen[0]} and {other} contradict each other; give one")


def _texts(args: argparse.Namespace) -> list[str]:
    if args.file is not None:
        if args.texts:
            raise InvalidArgumentError("give either TEXT or --file, not both")
        return [read_text_file(args.file)]
    if not args.texts and sys.stdin.isatty():
        raise InvalidArgumentError("no text; give TEXT, --file FILE, or - for standard input")
    return [
        read_stdin("text") if text == "-" else decode_argument(text, "TEXT")
        for text in args.texts or ["-"]
    ]


def _refuse_special_tokens(texts: list[str], tokenizer: "Tokenizer") -> None:
    from gpt2np.tokenizer.added import find_first

    for text in texts:
        if found := find_first(text, frozenset(tokenizer.special_tokens)):
            raise InvalidArgumentError(
                f"the text holds the special token {found}; give --special allow to take it for "
                "that token, or --special text to take it for plain text"
            )
