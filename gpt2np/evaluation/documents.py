"""The files that evaluations read: texts, and JSON Lines of records. UTF-8, or one clear line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from gpt2np.data.files import check_is_file
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.tokenizer.vocabulary import END_OF_TEXT

Errors = Literal["strict", "replace"]


def read_text(file: Path, errors: Errors = "strict") -> str:
    """A file's text to the character, but for a byte-order mark.

    Raises:
        InvalidArgumentError: it can't be read, or, "strict", isn't UTF-8. "replace" makes U+FFFD
            of what isn't.
    """
    check_is_file(file, InvalidArgumentError)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"can't read {file}: {error.strerror}") from error
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode(errors=errors)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset "
            f"{error.start}; convert it, or give --errors replace to read U+FFFD for such bytes"
        ) from error


def read_documents(file: Path, errors: Errors = "strict", field: str = "text") -> list[str]:
    """The documents of a file that aren't empty.

    A .jsonl file has one in a field of each line. In any other, documents end at <|endoftext|>;
    line ends beside it belong to none, all else is text.

    Raises:
        InvalidArgumentError: see `read_text` and `read_records`.
    """
    if file.suffix == ".jsonl":
        texts = [text_of(record, field, where) for where, record in read_records(file, errors)]
    else:
        first, *others = read_text(file, errors).split(END_OF_TEXT)
        texts = [first.rstrip("\r\n") if others else first]
        texts += [text.strip("\r\n") for text in others[:-1]]
        texts += [text.lstrip("\r\n") for text in others[-1:]]
    return [text for text in texts if text]


def read_records(file: Path, errors: Errors = "strict") -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON object of every line that isn't blank, and where it stands, for messages.

    Raises:
        InvalidArgumentError: see `read_text`; or names a line that holds no JSON object.
    """
    for number, line in enumerate(read_text(file, errors).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{where}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise InvalidArgumentError(
                f"{where}: expected a JSON object, found {short_repr(record)}"
            )
        yield where, record


def text_of(record: dict[str, Any], field: str, where: str) -> str:
    """The text in a record's field. InvalidArgumentError if there is none."""
    text = record.get(field)
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{where}: expected a text in the field {field!r}")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidArgumentError(f"{where}: a lone surrogate in the field {field!r} is no text")
    return text
