"""Files of a corpus and their documents.

A text file holds documents with separators between them. Each line of a .jsonl file holds a
document in one field of a JSON object. Each row of a .csv, .tsv or .parquet file holds a
document in one column. All but .parquet files may be compressed (.gz). Files are read lazily, and a
long document can be read in parts, so memory does not grow with the size of a file.
"""

import codecs
import csv
import glob
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from gpt2np.data import END_OF_TEXT
from gpt2np.data.files import bounded_lines, file_name
from gpt2np.data.parquet import NO_COLUMN, read_rows
from gpt2np.data.text import any_literal, describe_decode_error, is_unicode_text, is_utf16
from gpt2np.errors import InvalidArgumentError, error_reason, short_repr
from gpt2np.limits import check_expansion, how_to_raise, limits

_READ_SIZE = 1 << 20  # bytes to read at once; minimum characters in a part of a document

_N_SNIFFED_BYTES = 8000  # a zero byte among these marks a binary file, as in git

_MAX_KINDS = 5  # suffixes in a message

_ARRAY_SUFFIXES = (".bin", ".npy", ".safetensors")

# What is read from a folder; other files are read only if they are named.
_TABLE_SUFFIXES = (".csv", ".tsv")
_TEXT_SUFFIXES = ("", ".txt", ".jsonl", *_TABLE_SUFFIXES)
_FOLDER_SUFFIXES = {*_TEXT_SUFFIXES, *(f"{s}.gz" for s in _TEXT_SUFFIXES), ".parquet", ".npz"}

# A document may be cut before a space or newline that follows a visible character.
_up_to_last_word = re.compile(r".*\S(?=[ \n])", re.DOTALL).match


@dataclass(frozen=True)
class CorpusOptions:
    """Options for reading documents from files.

    With `split_long_documents`, documents of more than about a million characters are read in
    parts. A later part begins at a space or newline that follows a visible character. GPT-2's
    pre-tokenizer always splits a text there.
    """

    separators: tuple[str, ...] = (END_OF_TEXT,)  # texts between documents
    field: str = "text"  # field of a .jsonl line, or column, that holds the document
    split_long_documents: bool = False


class TextPart(NamedTuple):
    """A document, or a part of a long document."""

    text: str
    ends_document: bool  # whether this is the last part of its document


class Document(NamedTuple):
    """A whole document, or the reason why it can't be read."""

    text: str
    number: int  # position in the file, from 1: line of a .jsonl file, row, or document of a text
    problem: str | None = None  # error message; the text is then empty


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
    .tsv, .parquet and .npz, and .gz after the first four. `notify` receives one message that counts
    the files of unknown suffixes, and the notice of `plain_text_notice`. `outputs` are files or
    folders.

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
    skipped = [p for p in inputs if p not in named and _suffix(p) not in _FOLDER_SUFFIXES]
    if skipped:
        counts = Counter(map(_suffix, skipped)).most_common()
        kinds = ", ".join(f"{n:,} × {suffix}" for suffix, n in counts[:_MAX_KINDS])
        kinds += ", …" if len(counts) > _MAX_KINDS else ""
        message = f"files of unknown kinds in folders: {kinds}; name files, or give patterns"
        if len(skipped) == len(inputs):
            raise InvalidArgumentError(f"only {message}")
        notify(f"skipped {message}, to read them as text")
    if files and not inputs:
        raise InvalidArgumentError("no file to read, apart from the output")
    kept = sorted(files[p] for p in set(inputs).difference(skipped))
    if notice := plain_text_notice(kept):
        notify(notice)
    return kept


def plain_text_notice(files: Sequence[Path]) -> str | None:
    """Return a notice of the files that are read as plain text despite a suffix of JSON."""
    kinds = (".json", ".ndjson")
    plain = [f for f in files if _suffix(f).startswith(kinds) and not _has_records(f)]
    if not plain:
        return None
    more = f" and {len(plain) - 1:,} more" if plain[1:] else ""
    return f"read as plain text: {plain[0]}{more}; fields need the suffix .jsonl"


def _suffix(file: Path) -> str:
    """Return a suffix such as ".txt", or with compression ".txt.gz"."""
    is_compressed = file.suffix == ".gz"
    return f"{file.with_suffix('').suffix}.gz" if is_compressed else file.suffix


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
    if Path(path).is_file():
        if Path(path).suffix in _ARRAY_SUFFIXES:
            raise InvalidArgumentError(f"{path} holds arrays, not text; leave it out")
        return [Path(path)]
    if Path(path).exists():
        raise InvalidArgumentError(f"{path} is not a regular file; save the content to one")
    if not glob.has_magic(path):
        raise InvalidArgumentError(f"{path} does not exist; give files, folders or patterns")
    names = glob.glob(path, recursive=True)  # noqa: PTH207 (Path.glob has no absolute patterns)
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise InvalidArgumentError(f"no file matches the pattern {path}")
    return files


def read_parts(
    files: Iterable[Path],
    options: CorpusOptions,
    on_skip: Callable[[UnreadableFileError], object] | None = None,
) -> Iterator[TextPart]:
    """Yield the documents of `files` in order; `options` may split long documents into parts.

    Empty documents are skipped. In a text file, line ends at the start and end of each document are
    removed. If a file can't be read, `on_skip` is called with the error, and reading continues with
    the next file. The parts before the error have then already been yielded.

    Raises:
        UnreadableFileError: there is no `on_skip`, and a file can't be read: for example, it is not
            UTF-8, a .gz file is damaged, or a .jsonl line lacks the field.
    """
    for file in files:
        ends_document = True
        try:
            for text, ends_document in _read_file(file, options):
                yield TextPart(text, ends_document)
        except UnreadableFileError as error:
            if on_skip is None:
                raise
            on_skip(error)
            if not ends_document:
                yield TextPart("", True)


def read_numbered_documents(file: Path, options: CorpusOptions) -> Iterator[Document]:
    """Yield the whole documents of a file; a broken document or file yields its problem.

    A row or line whose text is empty is a document, too. Reading goes on after a broken document,
    and ends if the file itself is broken. As in `gpt2np eval`, only text files are
    split at separators, and line ends next to a separator are removed.
    """
    number = 0
    try:
        with _opened(file) as stream:
            if not _has_records(file):
                texts = _between_separators(_decode(stream, file, "surrogateescape"), options, file)
                for number, text in enumerate(texts, 1):
                    problem = None if is_unicode_text(text) else _not_utf8(text, file, number)
                    yield Document("" if problem else text, number, problem)
                return
            for number, location, record in _records(file, stream, options.field):
                try:
                    text = text_field(record, options.field, location)
                except UnreadableFileError as error:
                    yield Document("", number, str(error))
                else:
                    yield Document(text, number)
    except UnreadableFileError as error:
        yield Document("", number + 1, str(error))


def _has_records(file: Path) -> bool:
    suffixes = (".jsonl", *_TABLE_SUFFIXES)
    return file.suffix == ".parquet" or file.name.removesuffix(".gz").endswith(suffixes)


def _records(
    file: Path, stream: BinaryIO, field: str
) -> Iterator[tuple[int, str, bytes | dict[str, Any]]]:
    """Yield (number, location, record) for each row, or non-blank line of JSON."""
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        for number, line in enumerate(bounded_lines(stream, file), 1):
            if line.strip():
                yield number, f"{file}, line {number}", line
        return
    read = read_rows if file.suffix == ".parquet" else _read_csv
    for number, row in enumerate(read(stream, file, field), 1):
        yield number, f"{file}, row {number}", row


def _read_csv(stream: BinaryIO, file: Path, column: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a .csv or .tsv file with a header, as `pandas.read_csv` splits them.

    A blank line is not a row. In a short row, the missing values are empty texts.
    """
    csv.field_size_limit(limits().max_line_bytes)
    delimiter = "\t" if file.name.removesuffix(".gz").endswith(".tsv") else ","
    lines = codecs.iterdecode(bounded_lines(stream, file), "utf-8-sig")
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        names = next(filter(None, rows), [])
        if column not in names:
            raise UnreadableFileError(NO_COLUMN, file, column, short_repr(names), field=column)
        index = names.index(column)
        for row in filter(None, rows):
            if len(row) > len(names):
                raise UnreadableFileError(
                    f"{file}, line {rows.line_num}: {len(row)} values for {len(names)} columns"
                )
            yield {column: row[index] if index < len(row) else ""}
    except UnicodeDecodeError as error:
        line = "" if is_utf16(error.object) else f" of line {rows.line_num + 1}"
        raise UnreadableFileError(f"{describe_decode_error(file, error)}{line}") from error
    except csv.Error as error:
        raise UnreadableFileError(f"{file}, line {rows.line_num}: {error}") from error


def _read_file(file: Path, options: CorpusOptions) -> Iterator[TextPart]:
    with _opened(file) as stream:
        if _has_records(file):
            for _, location, record in _records(file, stream, options.field):
                text = text_field(record, options.field, location)
                yield from _join(_split_at_separators([text], options), options, "", file)
        else:
            segments = _split_at_separators(_decode(stream, file), options)
            yield from _join(segments, options, "\r\n", file)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file; decompress .gz. Each error of reading it becomes an UnreadableFileError."""
    try:
        with _GzipFile(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield cast("BinaryIO", stream)
    except UnreadableFileError:
        raise
    except InvalidArgumentError as error:
        raise UnreadableFileError(*error.args, **error.arguments) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableFileError(f"cannot read {file}: {error_reason(error)}") from error


class _GzipFile(gzip.GzipFile):
    """A .gz file whose growth is limited by `Limits.max_compression_ratio`."""

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._checked(super().readline(size))

    def _checked(self, data: bytes) -> bytes:
        n_read = self.myfileobj.tell() if self.myfileobj else 0  # None after `close`
        check_expansion(self.name, n_read, self.tell())
        return data


def _decode(stream: BinaryIO, file: Path, errors: str = "strict") -> Iterator[str]:
    """Decode a UTF-8 stream, and yield the text in consecutive strings of limited length."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    offset = 0
    while True:
        data = stream.read(_READ_SIZE)
        start = data[: max(0, _N_SNIFFED_BYTES - offset)]
        if b"\0" in start and not is_utf16(data):
            raise UnreadableFileError(f"{file_name(file)} is a binary file, not text; leave it out")
        n_buffered = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise UnreadableFileError(
                f"{describe_decode_error(file, error, offset - n_buffered)}; convert the file, or "
                "leave it out"
            ) from error
        yield text
        if not data:
            return
        offset += len(data)


def parse_record(line: str | bytes, location: str) -> dict[str, Any]:
    """Parse a JSON object, or raise UnreadableFileError with the `location`."""
    try:
        record = json.loads(line if isinstance(line, str) else line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UnreadableFileError(describe_decode_error(location, error)) from error
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"{location}: not JSON ({error})") from error
    if not isinstance(record, dict):
        kind = short_repr(record)
        raise UnreadableFileError(f"{location}: expected a JSON object, got {kind}")
    return record


def text_field(record: bytes | dict[str, Any], field: str, location: str) -> str:
    """Return the text in a field of a record; error messages show `location`.

    Raises:
        UnreadableFileError: the bytes of the record are not a JSON object; or the field is missing,
            not a string, or has a lone surrogate.
    """
    record = record if isinstance(record, dict) else parse_record(record, location)
    text = record.get(field)
    if not isinstance(text, str):
        message = "{0}: expected a string in the field {1!r}"
        if field not in record:
            message += "; the fields are {2}; choose one with the option {field}"
        raise UnreadableFileError(message, location, field, short_repr(list(record)), field=field)
    if not is_unicode_text(text):
        raise UnreadableFileError(
            f"{location}: the field {field!r} is not valid Unicode: it has a lone surrogate"
        )
    return text


def _split_at_separators(texts: Iterable[str], options: CorpusOptions) -> Iterator[TextPart]:
    """Split the concatenation of `texts` at separators, which may span several strings."""
    separator = any_literal(frozenset(options.separators))
    reach = max(map(len, options.separators), default=1)
    tail = ""
    for text in texts:
        tail += text
        safe_end = max(0, len(tail) - reach + 1)  # a separator may be incomplete from here on
        start = 0
        for match in separator.finditer(tail):
            if match.start() >= safe_end:
                break
            yield TextPart(tail[start : match.start()], True)
            start = match.end()
        safe_end = max(start, safe_end)
        yield TextPart(tail[start:safe_end], False)
        tail = tail[safe_end:]
    for document in separator.split(tail):
        yield TextPart(document, True)


def _between_separators(texts: Iterable[str], options: CorpusOptions, file: Path) -> Iterator[str]:
    """Yield the non-empty texts between separators, without line ends next to a separator."""
    before, pending, length = "", [], 0  # the document before, not stripped at its end yet
    margin = ""  # nothing is stripped at the start of the file
    for text, ends_document in _split_at_separators(texts, options):
        pending.append(text)
        length += len(text)
        _check_length(length, file)
        if ends_document:
            if stripped := before.rstrip("\r\n"):
                yield stripped
            before, pending, length = "".join(pending).lstrip(margin), [], 0
            margin = "\r\n"
    if before:
        yield before


def _not_utf8(text: str, file: Path, number: int) -> str:
    """Describe the first invalid byte of a text that was decoded with surrogateescape."""
    if number == 1 and is_utf16(text[:2].encode(errors="surrogateescape")):
        return f"{file_name(file)} is UTF-16 text, not UTF-8; convert it to UTF-8 first"
    byte = next(ord(c) - 0xDC00 for c in text if "\udc80" <= c <= "\udcff")
    return f"{file_name(file)}, document {number}: not UTF-8 text: byte 0x{byte:02x}"


def _join(
    segments: Iterable[TextPart], options: CorpusOptions, margin: str, file: Path
) -> Iterator[TextPart]:
    """Join texts to documents, or parts of long ones; strip `margin` (line ends) at both ends."""
    pending: list[str] = []
    length, threshold = 0, _READ_SIZE
    started = False
    for text, ends_document in segments:
        pending.append(text)
        length += len(text)
        _check_length(length, file)
        if ends_document:
            rest = "".join(pending).rstrip(margin)
            rest = rest if started else rest.lstrip(margin)
            if rest or started:
                yield TextPart(rest, True)
            pending, length, threshold, started = [], 0, _READ_SIZE, False
        elif options.split_long_documents and length > threshold:
            joined = "".join(pending)
            if words := _up_to_last_word(joined):
                part = words.group()
                yield TextPart(part if started else part.lstrip(margin), False)
                joined, started = joined[len(part) :], True
            pending, length = [joined], len(joined)
            threshold = max(_READ_SIZE, 2 * length)  # if no cut was found, try less often


def _check_length(length: int, file: Path) -> None:
    if length > (most := limits().max_document_bytes):
        raise UnreadableFileError(
            f"{file_name(file)}: a document has more than {most:,} characters; separate it into "
            f"several, or {how_to_raise('max_document_bytes')}"
        )
