"""Files of a corpus and their documents.

A text file holds documents with separators between them. Each line of a .jsonl file holds a
document in one field of a JSON object. Each row of a .csv, .tsv or .parquet file holds a
document in one column. All but .parquet files may be compressed (.gz). Files are read lazily, a
document at a time.
"""

import codecs
import csv
import glob
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, cast

from gpt2np.data import END_OF_TEXT
from gpt2np.data.files import bounded_lines, file_name
from gpt2np.data.parquet import column_names, read_rows
from gpt2np.data.text import any_literal, describe_decode_error, is_unicode_text, is_utf16
from gpt2np.errors import InvalidArgumentError, error_reason, short_repr
from gpt2np.limits import how_to_raise, limits

_READ_SIZE = 1 << 20  # bytes to read at once

_N_SNIFFED_BYTES = 8000  # a zero byte among these marks a binary file, as in git

_NO_TEXT = (".bin", ".json", ".ndjson", ".npy", ".npz", ".safetensors")
_NO_TEXT_ADVICE = "is not text; use .txt, .jsonl (a JSON value per line), .csv, .tsv or .parquet"

# What is read from a folder; other files are read only if they are named.
_TABLE_SUFFIXES = (".csv", ".tsv")
_TEXT_SUFFIXES = ("", ".txt", ".jsonl", *_TABLE_SUFFIXES)
_FOLDER_SUFFIXES = {*_TEXT_SUFFIXES, *(f"{s}.gz" for s in _TEXT_SUFFIXES), ".parquet"}


class Record(NamedTuple):
    """A line, row or document of a file, or the reason why it can't be read."""

    number: int  # line, row, or document of a text file, from 1
    value: Any = None  # a text, what a line of JSON holds, or a dict of a row's values
    problem: str | None = None  # error message; the value is then None


class Document(NamedTuple):
    """A document, or the reason why it can't be read."""

    text: str
    number: int  # position in the file, from 1: line of a .jsonl file, row, or document of a text
    problem: str | None = None  # error message; the text is then empty
    columns: Mapping[str, Any] = MappingProxyType({})  # all values of a row or JSON object


class UnreadableFileError(InvalidArgumentError):
    """Error for a file of the corpus that can't be read or parsed."""


def find_files(
    paths: Iterable[str | Path],
    outputs: Iterable[Path] = (),
    notify: Callable[[str], object] = lambda message: None,
) -> list[Path]:
    """Return the files that `paths` name, sorted, without duplicates and without `outputs`.

    Each path is a file, a glob pattern, or a folder, which is searched recursively. In folders,
    hidden files are skipped, and so are files of unknown suffixes: other than .txt, .jsonl, .csv,
    .tsv and .parquet, and .gz after the first four. `notify` receives one message about the files
    of unknown suffixes. `outputs` are files or folders.

    Raises:
        InvalidArgumentError: a path or pattern matches no file, a folder has no files, or only
            `outputs` and files of unknown suffixes remain.
    """
    files: dict[Path, Path] = {}
    named: set[Path] = set()  # not only as a part of a folder
    for path in paths:
        if str(path) == "":
            raise InvalidArgumentError("the name of a file or folder is empty")
        found = {file.resolve(): file for file in _expand(str(path))}
        files = found | files
        named |= set() if Path(path).is_dir() else found.keys()
    excluded = {output.resolve() for output in outputs}
    inputs = [p for p in files if excluded.isdisjoint([p, *p.parents])]
    skipped = [p for p in inputs if p not in named and kind_of(p) not in _FOLDER_SUFFIXES]
    if skipped:
        kinds = ", ".join(sorted({*map(kind_of, skipped)}))
        message = f"files of unknown kinds in folders: {kinds}; name files, or give patterns"
        if len(skipped) == len(inputs):
            raise InvalidArgumentError(f"only {message}")
        notify(f"skipped {message}, to read them as text")
    if files and not inputs:
        raise InvalidArgumentError("no file to read, apart from the output")
    return sorted(files[p] for p in set(inputs).difference(skipped))


def kind_of(file: Path) -> str:
    """Return a file's suffix in lower case, such as ".txt", or with compression ".txt.gz"."""
    kind = file.suffix.lower()
    return f"{file.with_suffix('').suffix.lower()}.gz" if kind == ".gz" else kind


def content_size(file: Path) -> int:
    """Return the bytes of a file's content, for progress; those of .gz as `gzip -l` tells them."""
    size = file.stat().st_size
    if kind_of(file).endswith(".gz") and size >= 4:
        with suppress(OSError), file.open("rb") as stream:
            stream.seek(-4, os.SEEK_END)
            size = max(size, int.from_bytes(stream.read(), "little"))
    return size


def _expand(path: str) -> list[Path]:
    if Path(path).is_dir():
        files = [
            file
            for file in Path(path).rglob("*")
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not files:
            raise InvalidArgumentError(f"the folder {path} has no files to read")
        return files
    names = [path]
    if not Path(path).is_file():
        if Path(path).exists():
            raise InvalidArgumentError(f"{path} is not a regular file; save the content to one")
        if not glob.has_magic(path):
            raise InvalidArgumentError(f"{path} does not exist; give files, folders or patterns")
        names = glob.glob(path, recursive=True)  # noqa: PTH207 (Path.glob has no absolute patterns)
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise InvalidArgumentError(f"no file matches the pattern {path}")
    if no_text := [file for file in files if kind_of(file).removesuffix(".gz") in _NO_TEXT]:
        raise InvalidArgumentError(f"{no_text[0]} {_NO_TEXT_ADVICE}")
    return files


def read_corpus_texts(
    files: Iterable[Path],
    field: str = "text",
    separators: Sequence[str] = (END_OF_TEXT,),
) -> Iterator[str]:
    """Yield the documents of `files` that are not empty, split at separators.

    Raises:
        UnreadableFileError: a file can't be read: for example, it is not UTF-8, a .gz file is
            damaged, or a .jsonl line lacks the field.
    """
    pattern = any_literal(frozenset(separators))
    for file in files:
        for document in read_documents(file, field, separators, all_columns=False):
            if document.problem is not None:
                raise UnreadableFileError(document.problem)
            yield from filter(None, pattern.split(document.text))


def read_documents(
    file: Path,
    field: str = "text",
    separators: Sequence[str] = (END_OF_TEXT,),
    *,
    all_columns: bool = True,
) -> Iterator[Document]:
    """Yield the documents of a file; a broken document or file yields its problem.

    A row or line whose text is empty is a document, too. Only text files are split at separators;
    line ends at the start and end of their documents are removed, and empty documents are skipped.
    Reading goes on after a broken document, and ends if the file itself is broken. `all_columns`
    reads all columns of a table, not only `field`.
    """
    number, text = 0, ""
    try:
        for record in read_records(file, field, separators, all_columns=all_columns):
            number, text, problem = record
            if problem is None and not isinstance(text, str):
                text, problem = _text_field(text, field, f"{_place(file)} {number}")
            elif problem is None and not is_unicode_text(text):  # a line that is a JSON string
                problem = f"{_place(file)} {number} is not valid Unicode: it has a lone surrogate"
            columns = record.value if isinstance(record.value, dict) else {}
            yield Document("" if problem else text, number, problem, columns)
    except UnreadableFileError as error:
        yield Document("", number + 1, f"{error}")


def read_records(
    file: Path,
    field: str,
    separators: Sequence[str] | None = (END_OF_TEXT,),
    *,
    all_columns: bool = True,
) -> Iterator[Record]:
    """Yield the records of a file, which the reader of its suffix reads.

    With `separators` None, each line of a text file is a record. A table needs the column `field`.

    Raises UnreadableFileError if the file, not only a record of it, can't be read.
    """
    with opened(file) as stream:
        yield from _read(file, stream, field, separators, all_columns)


def _read(
    file: Path,
    stream: BinaryIO,
    field: str,
    separators: Sequence[str] | None,
    all_columns: bool,
) -> Iterator[Record]:
    kind = kind_of(file).removesuffix(".gz")
    if kind == ".jsonl":
        return _read_json_lines(file, stream)
    if kind in _TABLE_SUFFIXES:
        return _read_csv(file, stream, field, "\t" if kind == ".tsv" else ",")
    if kind == ".parquet":
        _check_columns(file, column_names(stream, file_name(file)), field)
        rows = read_rows(stream, file_name(file), None if all_columns else [field])
        return (Record(number, row) for number, row in enumerate(rows, 1))
    return _read_lines(file, stream) if separators is None else _read_text(file, stream, separators)


def _place(file: Path) -> str:
    return f"{file_name(file)}, {'line' if kind_of(file).startswith('.jsonl') else 'row'}"


def _check_columns(file: Path, names: Sequence[str], field: str) -> None:
    if not names:
        raise UnreadableFileError(f"{file_name(file)} is empty")
    if field not in names:
        raise UnreadableFileError(
            f"{file_name(file)} has no column {field!r}; set `field` to one of its columns, "
            f"{short_repr([*names])}"
        )
    for name, count in Counter(names).items():
        if count > 1:
            raise UnreadableFileError(
                f"{file_name(file)} has {count} columns of the name {name!r}; rename them"
            )


def _read_json_lines(file: Path, stream: BinaryIO) -> Iterator[Record]:
    """Yield the JSON value of each line that is not blank."""
    for number, line in enumerate(bounded_lines(stream, file_name(file)), 1):
        place = f"{_place(file)} {number}"
        try:
            if text := line.decode("utf-8-sig").strip():
                yield Record(number, json.loads(text))
        except UnicodeDecodeError as error:
            yield Record(number, None, describe_decode_error(place, error))
        except (ValueError, RecursionError) as error:
            yield Record(number, None, f"{place}: not JSON ({error})")


def _read_csv(file: Path, stream: BinaryIO, field: str, delimiter: str) -> Iterator[Record]:
    """Yield the rows of a .csv or .tsv file with a header, as `pandas.read_csv` splits them.

    A blank line is not a row. In a short row, the missing values are empty texts.
    """
    csv.field_size_limit(limits().max_line_bytes)
    name = file_name(file)
    lines = codecs.iterdecode(bounded_lines(stream, name), "utf-8-sig")
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(filter(None, rows), [])
        _check_columns(file, header, field)
        for number, row in enumerate(filter(None, rows), 1):
            if len(row) > len(header):
                raise UnreadableFileError(
                    f"{name}, line {rows.line_num}: {len(row)} values for {len(header)} columns"
                )
            missing = [""] * (len(header) - len(row))
            yield Record(number, dict(zip(header, [*row, *missing], strict=True)))
    except UnicodeDecodeError as error:
        line = "" if is_utf16(error.object) else f" of line {rows.line_num + 1}"
        raise UnreadableFileError(f"{describe_decode_error(name, error)}{line}") from error
    except csv.Error as error:
        raise UnreadableFileError(f"{name}, line {rows.line_num}: {error}") from error


def _read_lines(file: Path, stream: BinaryIO) -> Iterator[Record]:
    """Yield the lines of a text file that are not blank."""
    _check_text(stream.read(_N_SNIFFED_BYTES), file_name(file))
    stream.seek(0)
    for number, line in enumerate(bounded_lines(stream, file_name(file)), 1):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
        text = text.removesuffix("\n").removesuffix("\r")
        if text.strip():
            yield _checked(number, text, f"{file_name(file)}, line {number}")


def _read_text(file: Path, stream: BinaryIO, separators: Sequence[str]) -> Iterator[Record]:
    """Yield the documents of a text file that are not empty, without line ends around them."""
    name, number, pending, length = file_name(file), 0, list[str](), 0
    for text, is_whole in _split_at_separators(_decode(stream, name), separators):
        pending.append(text)
        length += len(text)
        if length > (most := limits().max_document_bytes):
            raise UnreadableFileError(
                f"{name}: a document has more than {most:,} characters; separate it into several, "
                f"or {how_to_raise('max_document_bytes')}"
            )
        if is_whole:
            if document := "".join(pending).strip("\r\n"):
                number += 1
                yield _checked(number, document, f"{name}, document {number}")
            pending, length = [], 0


def _checked(number: int, text: str, place: str) -> Record:
    """Return a text that was decoded with surrogateescape, or its first invalid byte."""
    if is_unicode_text(text):
        return Record(number, text)
    index = next(i for i, c in enumerate(text) if "\udc80" <= c <= "\udcff")
    byte, offset = ord(text[index]) - 0xDC00, len(text[:index].encode())
    return Record(number, None, f"{place} is not UTF-8 text: byte 0x{byte:02x} at offset {offset}")


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file; decompress .gz. Each error of reading it becomes an UnreadableFileError."""
    if kind_of(file).removesuffix(".gz") in _NO_TEXT:
        raise UnreadableFileError(f"{file_name(file)} {_NO_TEXT_ADVICE}")
    try:
        with gzip.open(file) if kind_of(file).endswith(".gz") else file.open("rb") as stream:
            yield cast("BinaryIO", stream)
    except UnreadableFileError:
        raise
    except InvalidArgumentError as error:
        raise UnreadableFileError(f"{error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableFileError(f"cannot read {file}: {error_reason(error)}") from error


def _decode(stream: BinaryIO, name: str) -> Iterator[str]:
    """Decode a UTF-8 stream in strings of limited length; invalid bytes become surrogates."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    data = stream.read(_READ_SIZE)
    _check_text(data[:_N_SNIFFED_BYTES], name)
    while data:
        yield decoder.decode(data)
        data = stream.read(_READ_SIZE)
    yield decoder.decode(b"", final=True)


def _check_text(data: bytes, name: str) -> None:
    """Raise UnreadableFileError if a file begins with UTF-16 text or binary data."""
    if is_utf16(data):
        raise UnreadableFileError(f"{name} is UTF-16 text, not UTF-8; convert it to UTF-8 first")
    if b"\0" in data:
        raise UnreadableFileError(f"{name} is a binary file, not text; leave it out")


def _text_field(value: Any, field: str, place: str) -> tuple[str, str | None]:
    """Return the text in a field of a record, and the problem if there is no valid text."""
    if not isinstance(value, dict):
        return "", f"{place}: expected a JSON object, got {short_repr(value)}"
    text = value.get(field)
    if not isinstance(text, str):
        advice = f"; set `field` to one of its fields, {short_repr([*value])}"
        problem = f"{place}: expected a string in the field {field!r}"
        return "", f"{problem}{'' if field in value else advice}"
    if not is_unicode_text(text):
        return "", f"{place}: the field {field!r} is not valid Unicode: it has a lone surrogate"
    return text, None


def _split_at_separators(
    texts: Iterable[str], separators: Sequence[str]
) -> Iterator[tuple[str, bool]]:
    """Split the concatenation of `texts` at separators, which may span several strings.

    Yields (text, whether a separator or the end follows).
    """
    separator = any_literal(frozenset(separators))
    reach = max(map(len, separators), default=1)
    tail = ""
    for text in texts:
        tail += text
        safe_end = max(0, len(tail) - reach + 1)  # a separator may be incomplete from here on
        start = 0
        for match in separator.finditer(tail):
            if match.start() >= safe_end:
                break
            yield tail[start : match.start()], True
            start = match.end()
        safe_end = max(start, safe_end)
        yield tail[start:safe_end], False
        tail = tail[safe_end:]
    for document in separator.split(tail):
        yield document, True
