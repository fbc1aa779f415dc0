"""Readers of the files that evaluations use: texts and JSON Lines, in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from gpt2np.data.corpus import parse_record, text_field
from gpt2np.data.files import read_bytes
from gpt2np.data.text import decode_utf8
from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.vocabulary import END_OF_TEXT

Errors = Literal["strict", "replace"]


def read_text(file: Path, errors: Errors = "strict") -> str:
    """Read a file's text. Drops a byte-order mark; keeps line ends as they are.

    If `errors` is "strict", bytes that are not UTF-8 raise an error; if "replace", they become
    U+FFFD.

    Raises:
        InvalidArgumentError: the file cannot be read, or is not UTF-8 and `errors` is "strict".
    """
    return decode_utf8(read_bytes(file, InvalidArgumentError), file, errors=errors)


def read_all_documents(file: Path, errors: Errors = "strict", field: str = "text") -> list[str]:
    """Read the documents of a file; empty documents are left out.

    Each line of a .jsonl file is an object with a document in `field`. In any other file,
    <|endoftext|> separates documents, and line ends next to <|endoftext|> are dropped.

    Raises:
        InvalidArgumentError: the file is a table, or cannot be read or decoded, or a line is not a
            JSON object with text in `field`.
    """
    if file.suffix.lower() in (".csv", ".tsv", ".parquet") and file.is_file():
        raise InvalidArgumentError(f"{file} is a table; gpt2np score scores each of its rows")
    if file.suffix == ".jsonl":
        records = read_records(file, errors)
        texts = [text_field(record, field, location) for location, record in records]
    else:
        first, *rest = read_text(file, errors).split(END_OF_TEXT)
        texts = [first.rstrip("\r\n") if rest else first]
        texts += [text.strip("\r\n") for text in rest[:-1]]
        texts += [text.lstrip("\r\n") for text in rest[-1:]]
    return [text for text in texts if text]


def read_records(file: Path, errors: Errors = "strict") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, JSON object) for each non-blank line; the location is for error messages.

    Raises:
        InvalidArgumentError: the file cannot be read or decoded, or a line is not a JSON object.
    """
    for number, line in enumerate(read_text(file, errors).split("\n"), 1):
        if line.strip():
            location = f"{file}, line {number}"
            yield location, parse_record(line, location)
