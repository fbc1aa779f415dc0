"""A corpus: files, folders and glob patterns in, documents out, one after another.

A text file is a run of documents with separators between them; a .jsonl file has a document in a
field of every line. Either may be compressed (.gz). Nothing is read before it is needed, and a long
document may be had in blocks, so that memory does not follow the size of a file.
"""

import codecs
import glob
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.added import any_of
from gpt2np.tokenizer.vocabulary import END_OF_TEXT

_READ = 1 << 20  # characters at once

# Where text may be cut: in front of white space that follows a visible character.
_up_to_last_word = re.compile(r".*\S(?=[ \n])", re.DOTALL).match


@dataclass(frozen=True)
class CorpusOptions:
    """How documents are found in files.

    Attributes:
        separators: texts that end a document; they are part of none.
        field: the field of a .jsonl line that holds the document.
        in_blocks: cut what is longer than about a million characters, in front of a space or line
            end that follows a visible character. There GPT-2's split pattern always cuts too.
    """

    separators: tuple[str, ...] = (END_OF_TEXT,)
    field: str = "text"
    in_blocks: bool = False


class Block(NamedTuple):
    """A document, or a part of a long one; `ends` tells whether it is the last part."""

    text: str
    ends: bool


class UnreadableFileError(InvalidArgumentError):
    """A file of the corpus is not what it should be."""


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files that `paths` name: files, folders (with all below them) and glob patterns.

    Sorted, each once, however often it is named. In folders, hidden files and those of arrays
    (.bin, .npy, .safetensors) are left out.

    Raises:
        InvalidArgumentError: a path or pattern that names nothing, or a folder without files.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if str(path) == "":
            raise InvalidArgumentError("the name of a file or folder is empty")
        for file in _files_of(str(path)):
            found.setdefault(file.resolve(), file)
    return sorted(found.values())


def _files_of(path: str) -> list[Path]:
    if Path(path).is_dir():
        below = (file for file in Path(path).rglob("*") if _may_be_text(file))
        files = [file for file in below if not _is_hidden(file.relative_to(path))]
        if not files:
            raise InvalidArgumentError(f"the folder {path} holds no files to read")
        return files
    if Path(path).is_file():
        return [Path(path)]
    if Path(path).exists():
        raise InvalidArgumentError(f"{path} is no file that can be read twice; save it to one")
    if not glob.has_magic(path):
        raise InvalidArgumentError(f"{path} does not exist; give files, folders or patterns")
    names = glob.glob(path, recursive=True)  # noqa: PTH207 (Path.glob knows no absolute patterns)
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise InvalidArgumentError(f"no file matches the pattern {path}")
    return files


def _may_be_text(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".bin", ".npy", ".safetensors")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_blocks(
    files: Iterable[Path],
    options: CorpusOptions,
    skipped: Callable[[UnreadableFileError], object] | None = None,
) -> Iterator[Block]:
    """The documents of `files`, in order. Empty ones are left out, and so are the line ends that
    set a document in a text file off from its separators.

    What is no text ends the reading; with `skipped`, this is called and the next file begins. What
    a damaged file holds before the damage may have been given by then.

    Raises:
        UnreadableFileError: names a file that can't be read, is not UTF-8, or not gzip although it
            is called .gz; or the line of a .jsonl file that is not JSON or lacks the field.
    """
    for file in files:
        ends = True
        try:
            for text, ends in _blocks_of(file, options):
                yield Block(text, ends)
        except UnreadableFileError as error:
            if skipped is None:
                raise
            skipped(error)
            if not ends:
                yield Block("", True)


def read_documents(
    files: Iterable[Path],
    options: CorpusOptions,
    skipped: Callable[[UnreadableFileError], object] | None = None,
) -> Iterator[str]:
    """The same, as whole documents whatever `options.in_blocks` says."""
    parts: list[str] = []
    for text, ends in read_blocks(files, options, skipped):
        parts.append(text)
        if ends:
            yield "".join(parts)
            parts = []


def _blocks_of(file: Path, options: CorpusOptions) -> Iterator[Block]:
    try:
        with _open(file) as stream:
            if file.name.removesuffix(".gz").endswith(".jsonl"):
                for text in _fields(stream, file, options.field):
                    yield from _cut(_segments([text], options.separators), options, "")
            else:
                segments = _segments(_decoded(stream, file), options.separators)
                yield from _cut(segments, options, "\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFileError(f"can't read {file}: {reason}") from error


def _open(file: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def _decoded(stream: IO[bytes], file: Path) -> Iterator[str]:
    """The text of a file, in parts."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset = 0
    while True:
        data = stream.read(_READ)
        held_back = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise UnreadableFileError(
                f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset "
                f"{offset - held_back + error.start}; convert it, or leave it out"
            ) from error
        if not data:
            return
        offset += len(data)
        yield text


def _fields(stream: IO[bytes], file: Path, field: str) -> Iterator[str]:
    """The field of every line that is not blank."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UnreadableFileError(f"{file}, line {number}: not JSON ({error})") from error
        text = record.get(field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise UnreadableFileError(
                f"{file}, line {number}: expected an object with a text in the field {field!r}; "
                "name the field that holds it"
            )
        if any("\ud800" <= char <= "\udfff" for char in set(text)):
            raise UnreadableFileError(f"{file}, line {number}: a lone surrogate is no text")
        yield text


def _segments(texts: Iterable[str], separators: Sequence[str]) -> Iterator[Block]:
    """`texts`, which follow on each other, cut at the separators; of several the longest counts."""
    separator = any_of(frozenset(separators))
    reach = max(map(len, separators), default=1)
    tail = ""
    for text in texts:
        tail += text
        sure = max(0, len(tail) - reach + 1)  # from there on a separator may be incomplete
        start = 0
        for match in separator.finditer(tail):
            if match.start() >= sure:
                break
            yield Block(tail[start : match.start()], True)
            start = match.end()
        sure = max(start, sure)
        yield Block(tail[start:sure], False)
        tail = tail[sure:]
    for document in separator.split(tail):
        yield Block(document, True)


def _cut(segments: Iterable[Block], options: CorpusOptions, margin: str) -> Iterator[Block]:
    """The segments put together to documents, or to blocks of long ones; without `margin`."""
    waiting: list[str] = []
    length, enough = 0, _READ
    begun = False
    for text, ends in segments:
        waiting.append(text)
        length += len(text)
        if ends:
            rest = "".join(waiting).rstrip(margin)
            rest = rest if begun else rest.lstrip(margin)
            if rest or begun:
                yield Block(rest, True)
            waiting, length, enough, begun = [], 0, _READ, False
        elif options.in_blocks and length > enough:
            whole = "".join(waiting)
            if words := _up_to_last_word(whole):
                block = words.group()
                yield Block(block if begun else block.lstrip(margin), False)
                whole, begun = whole[len(block) :], True
            waiting, length = [whole], len(whole)
            enough = max(_READ, 2 * length)  # where nothing may be cut, don't try it too often
