r"""Show how text is split into tokens.

Each TEXT is tokenized as it stands, also the name of a file. Standard input is
read if TEXT is '-' or missing (< FILE); one newline at its end is removed. Only
the vocabulary of the model is downloaded.

Characters that cannot be displayed are escaped as in Python: "\n" for a line
end, "\xf0" for one byte of a character that spans several tokens.
"""

import argparse
import json
import shutil
from typing import TYPE_CHECKING, Any

from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_stderr, terminal_style
from gpt2np.cli.text_input import add_special_argument, read_texts

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer

MERGES_LEGEND = (
    "Between two tokens stands the rank of their merge, or – if there is none. The pair with the "
    "lowest rank, in [brackets], is merged next."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Text to tokenize, or '-' to read standard input"
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=text)
    add_vocabulary_argument(parser)
    add_special_argument(parser, "error")
    output = parser.add_argument_group("Output")
    formats = output.add_mutually_exclusive_group()
    for option, meaning in (
        ("ids", "Print only the token ids, one line per text"),
        ("count", "Print only the number of tokens, one line per text"),
        ("merges", "Print every merge of BPE, step by step"),
        ("json", "Print one JSON object per text, with the position of each token"),
    ):
        formats.add_argument(f"--{option}", action="store_true", help=meaning)


def run(args: argparse.Namespace) -> int:
    from gpt2np.tokenizer.normalizer import allowed_special, check_special

    texts = read_texts(args.texts, "text")
    tokenizer, description = load_tokenizer(args.model)
    for text in texts:
        check_special(text, tokenizer.special_tokens, args.special)
    options = {"allowed_special": allowed_special(args.special), "disallowed_special": ()}
    output = [_format(text, tokenizer, options, args) for text in texts]
    print_stderr(description)
    one_line_each = args.ids or args.count or args.json
    if args.merges:
        print_stderr(MERGES_LEGEND)
    print(("\n" if one_line_each else "\n\n").join(output), flush=True)
    return 0


def _format(
    text: str, tokenizer: "Tokenizer", options: dict[str, Any], args: argparse.Namespace
) -> str:
    if args.json:
        return json.dumps(_as_json(text, tokenizer, options), ensure_ascii=False)
    ids = tokenizer.encode(text, **options)
    if args.ids or args.count:
        return " ".join(map(str, ids)) if args.ids else str(len(ids))

    from gpt2np.tokenizer.display import merge_table, token_rows

    style = terminal_style()
    if args.merges:
        traces = tokenizer.trace_merges(text, **options)
        return "\n\n".join(merge_table(trace, tokenizer.vocabulary, style) for trace in traces)
    tokens = [tokenizer.vocabulary.token_bytes[token_id] for token_id in ids]
    return token_rows(tokens, ids, shutil.get_terminal_size().columns, style)


def _as_json(text: str, tokenizer: "Tokenizer", options: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of a text as JSON; bytes of incomplete characters are escaped."""
    spans = tokenizer.offsets(text, **options)
    ids = [span.id for span in spans]
    return {
        "text": text,
        "ids": ids,
        "tokens": tokenizer.token_texts(ids),
        "offsets": [[span.start, span.end] for span in spans],
        "byte_offsets": [[span.byte_start, span.byte_end] for span in spans],
    }
