"""Show the text of token ids.

The IDs on the command line form one text. Standard input is read if ID is '-',
or if neither ID nor --file is given. In standard input and in a file, each line
holds the ids of one text, separated by spaces or commas. JSON also works: lists
of ids, lists of such lists, or objects with the field "ids". The commands
'gpt2np tokenize --json' and 'gpt2np generate --json' print such objects.

Bytes that are not UTF-8 become U+FFFD. Only the vocabulary of the model is
downloaded.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import read_texts
from gpt2np.errors import InvalidArgumentError, short_repr

_BETWEEN_VALUES = re.compile(r"[\s,]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="Token id to decode, or '-' to read standard input")
    add("--file", type=Path, metavar="FILE", help="Read the ids from FILE")
    add_vocabulary_argument(parser)
    skip = "Leave out special tokens such as <|endoftext|>"
    add("--skip-special-tokens", action="store_true", help=skip)
    output = parser.add_argument_group("Output")
    as_json = "Print one JSON object per text: ids, tokens and text"
    output.add_argument("--json", action="store_true", help=as_json)


def run(args: argparse.Namespace) -> int:
    given = [" ".join(args.ids)] if args.ids else []
    [text] = read_texts(given, args.file, "ids", "ID")
    sequences = parse_ids(text)
    tokenizer, description = load_tokenizer(args.model)
    texts = [
        tokenizer.decode(ids, skip_special_tokens=args.skip_special_tokens) for ids in sequences
    ]
    print_stderr(description)
    for ids, text in zip(sequences, texts, strict=True):
        content = {"ids": ids, "tokens": tokenizer.token_texts(ids), "text": text}
        print(json.dumps(content, ensure_ascii=False) if args.json else text)
    return 0


def parse_ids(text: str) -> list[list[int]]:
    """Parse lines of numbers, or JSON values. Returns a list of ids for each text to decode."""
    if text.lstrip()[:1] in ("[", "{"):
        sequences = [ids for value in _json_values(text) for ids in _sequences(value)]
    else:
        lines = [re.findall(r"[^\s,]+", line) for line in text.splitlines()]
        sequences = [[_parse_id(word) for word in words] for words in lines]
    if not sequences:
        raise InvalidArgumentError("there are no ids to decode")
    return sequences


def _json_values(text: str) -> list[Any]:
    decoder, values, position = json.JSONDecoder(), [], len(text) - len(text.lstrip())
    try:
        while position < len(text):
            value, position = decoder.raw_decode(text, position)
            values.append(value)
            if match := _BETWEEN_VALUES.match(text, position):
                position = match.end()
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the ids are not valid JSON: {error}") from error
    return values


def _sequences(value: Any) -> list[list[int]]:
    """Return the lists of ids in a JSON value."""
    if isinstance(value, dict):
        value = value.get("ids")
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return [ids for item in value for ids in _sequences(item)]
    if isinstance(value, list) and all(type(item) is int for item in value):
        return [value]
    raise InvalidArgumentError(
        f"{short_repr(value)} is not a list of ids; expected [464, 3290], a list of such lists, or "
        'objects with the field "ids"'
    )


def _parse_id(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise InvalidArgumentError(f"{short_repr(word)} is not an id; ids are integers from 0")
    return int(word)
