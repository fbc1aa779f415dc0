"""Jobs that read a corpus: batches of documents, and the position after each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpt2np import __version__
from gpt2np.data.corpus import UnreadableFileError, content_size
from gpt2np.data.resumable import START, Job, Position, Results, Step, file_stamp

Item = TypeVar("Item")
"""A text or a Document."""

MapItems = Callable[[Callable[[], Callable[[Any], Any]], Iterable[Any]], Iterator[tuple[Any, Any]]]
"""`map_items(make_function, items)` yields (item, result) in order; see `map_in_order`."""


@dataclass(frozen=True)
class DocumentBatch(Generic[Item]):
    """Consecutive documents of a file."""

    file: int  # index of the file
    items: list[Item]
    ends_file: bool  # whether this is the last batch of the file
    nbytes: int  # size of the documents in UTF-8
    error: UnreadableFileError | None = None  # reason to skip the file, if any


def read_batches(
    files: Sequence[Path],
    read: Callable[[Path], Iterable[tuple[Item, int, int]]],
    batch_size: int,
    *,
    skip_errors: bool = False,
    start: Position = START,
) -> Iterator[DocumentBatch[Item]]:
    """Yield the documents of `files` in batches, which are the same in every call.

    `read` yields (document, size, bytes). A batch ends with the document that reaches `batch_size`.

    With `skip_errors`, each file is read to its end first, and a file that can't be read yields a
    single batch with an `error`. Otherwise, such a file raises UnreadableFileError.
    """
    for index in range(start.inputs, len(files)):
        try:
            if skip_errors:
                deque(read(files[index]), maxlen=0)
        except UnreadableFileError as error:
            yield DocumentBatch(index, [], True, 0, error)
            continue
        batches = _file_batches(index, read(files[index]), batch_size)
        yield from islice(batches, start.batches if index == start.inputs else 0, None)


def _file_batches(
    file: int, items: Iterable[tuple[Item, int, int]], batch_size: int
) -> Iterator[DocumentBatch[Item]]:
    pending: list[Item] = []
    total = n_bytes = 0
    for item, size, item_bytes in items:
        pending.append(item)
        total, n_bytes = total + size, n_bytes + item_bytes
        if total >= batch_size:
            yield DocumentBatch(file, pending, False, n_bytes)
            pending, total, n_bytes = [], 0, 0
    yield DocumentBatch(file, pending, True, n_bytes)


def corpus_job(
    files: Sequence[Path],
    settings: Mapping[str, Any],
    run: Callable[[Position], Iterator[tuple[DocumentBatch[Any], Results]]],
    assemble: Callable[[Sequence[Path], Path], Any],
    n_streams: int = 1,
) -> Job:
    """Return the job that reads `files`; files may be added at the end before the job resumes.

    `run(position)` yields each batch after a position with its results. A file counts as changed if
    its size or modification time has changed.
    """
    stamps = [file_stamp(file) for file in files]
    ends = [*accumulate(map(content_size, files))]

    def steps(position: Position) -> Iterator[Step]:
        _, n_batches, done = position
        for batch, results in run(position):
            end = ends[batch.file]
            n_batches = 0 if batch.ends_file else n_batches + 1
            done = end if batch.ends_file else min(done + batch.nbytes, end)
            position = Position(batch.file + batch.ends_file, n_batches, done)
            yield Step(position, stamps[batch.file], results)

    return Job(
        {"version of gpt2np": __version__, **settings},
        lambda n: [file_stamp(file) if file.exists() else None for file in files[:n]],
        lambda index: f"{files[index]}" if index < len(files) else "the list of input files",
        steps,
        assemble,
        n_streams,
    )
