"""Show the text of token ids.

The IDs on the command line form one text. Standard input is read if ID is '-'
or missing: each line holds the ids of one text, separated by spaces or commas,
as 'gpt2np tokenize --ids' prints them.

Bytes that are not UTF-8 become U+FFFD. An id outside the vocabulary is an
error. Only the vocabulary of the model is downloaded.
"""

import argparse
from itertools import chain

from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import read_texts
from gpt2np.errors import InvalidArgumentError, errors_at, short_repr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Token id to decode, or '-' to read standard input"
    parser.add_argument("ids", nargs="*", metavar="ID", help=text)
    add_vocabulary_argument(parser)


def run(args: argparse.Namespace) -> int:
    [text] = read_texts([" ".join(args.ids)] if args.ids else [], "id")
    if not text.strip():
        raise InvalidArgumentError("there are no ids to decode")
    sequences = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        with errors_at(f"line {number}: " if len(lines) > 1 else ""):
            sequences.append(_parse_line(line))
    tokenizer, description = load_tokenizer(args.model)
    last = tokenizer.vocab_size - 1
    for token_id in chain.from_iterable(sequences):
        if token_id > last:
            raise InvalidArgumentError(f"no token has the id {token_id}; the ids are 0 to {last}")
    print_stderr(description)
    for ids in sequences:
        print(tokenizer.decode(ids))
    return 0


def _parse_line(line: str) -> list[int]:
    words = line.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 20):
            raise InvalidArgumentError(f"{short_repr(word)} is not an id; ids are integers from 0")
    return [*map(int, words)]
