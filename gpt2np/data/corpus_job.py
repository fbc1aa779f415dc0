"""Jobs that read a corpus: batches of documents, and the position after each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpt2np import __version__
from gpt2np.data.corpus import UnreadableFileError
from gpt2np.data.resumable import Job, Position, ReadStream, Results, input_digests
from gpt2np.errors import GPT2NPError

Item = TypeVar("Item", bound="tuple[Any, ...]")
"""A document, or a part of one; the first field is its text, or an array of its token ids."""


@dataclass(frozen=True)
class DocumentBatch(Generic[Item]):
    """Consecutive documents of a file, or parts of documents."""

    file: int  # index of the file
    items: list[Item]
    ends_file: bool  # whether this is the last batch of the file
    error: UnreadableFileError | None = None  # reason to skip the file, if any

    @property
    def nbytes(self) -> int:
        """Size of the batch's documents in bytes: texts in UTF-8, and arrays of token ids."""
        contents = (item[0] for item in self.items)
        return sum(len(c.encode()) if isinstance(c, str) else c.nbytes for c in contents)


RunBatches = Callable[
    [Sequence[Path], tuple[int, int]], Iterator[tuple[DocumentBatch[Any], Results]]
]
"""`run(files, start)` yields each batch from `start` on (see `read_batches`) with its results."""


def read_batches(
    files: Sequence[Path],
    read: Callable[[Path], Iterable[Item]],
    batch_size: int,
    *,
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[DocumentBatch[Item]]:
    """Yield the documents of `files` in batches, which are the same in every call.

    A batch ends with the document that reaches `batch_size` characters (or token ids). `start` is
    the first batch to yield: (file index, batch index within the file).

    With `skip_errors`, each file is read to its end first, and a file that can't be read yields a
    single batch with an `error`. Otherwise, such a file raises UnreadableFileError.
    """
    first_file, first_batch = start
    for index in range(first_file, len(files)):
        try:
            if skip_errors:
                deque(read(files[index]), maxlen=0)
        except UnreadableFileError as error:
            yield DocumentBatch(index, [], True, error)
            continue
        batches = _file_batches(index, read(files[index]), batch_size)
        yield from islice(batches, first_batch if index == first_file else 0, None)


def _file_batches(
    file: int, items: Iterable[Item], batch_size: int
) -> Iterator[DocumentBatch[Item]]:
    pending: list[Item] = []
    size = 0
    for item in items:
        pending.append(item)
        size += len(item[0])
        if size >= batch_size:
            yield DocumentBatch(file, pending, False)
            pending, size = [], 0
    yield DocumentBatch(file, pending, True)


def corpus_job(
    files: Sequence[Path],
    settings: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    run: RunBatches,
    assemble: Callable[[ReadStream, Path], Any],
    harmless: Mapping[str, Any] | None = None,
) -> Job:
    """Return the job that reads `files`; files may be added at the end before the job resumes.

    A file counts as changed if its size or modification time has changed. The other arguments are
    those of `Job`.
    """
    digests = input_digests(files)
    ends = [*accumulate(file.stat().st_size for file in files)]  # cumulative sizes

    def steps(position: Position) -> Iterator[tuple[Position, Results]]:
        n_batches, done = position.batches, position.done
        for batch, results in run(files, (position.files, n_batches)):
            end = ends[batch.file]
            n_batches = 0 if batch.ends_file else n_batches + 1
            done = end if batch.ends_file else min(done + batch.nbytes, end)
            n_files = batch.file + batch.ends_file
            yield Position(n_files, n_batches, done, digests[batch.file + 1]), results
        for file, before, after in zip(files, digests[1:], input_digests(files)[1:], strict=True):
            if before != after:
                message = "{0} has changed while it was read; run it again with {force.setting}"
                raise GPT2NPError(message, file, force=True)

    return Job(
        {"version of gpt2np": __version__, **settings},
        fingerprints,
        lambda _: dict(enumerate(digests)),
        partial(_describe_files, files),
        steps,
        assemble,
        harmless or {},
    )


def _describe_files(files: Sequence[Path], start: int, stop: int) -> str:
    changed = files[start:stop]
    if len(changed) > 1:
        return f"a file from {changed[0]} to {changed[-1]}"
    return f"{changed[0]}" if changed else "the list of input files"
