"""A corpus as ids in one file, as training programs read it.

    out.bin   the ids, raw, each document followed by that of <|endoftext|> (nanoGPT)
    out.npy   the same as a NumPy array
    out.npz   arrays arr_0, arr_1, …: documents joined by <|endoftext|> (OpenAI's GPT-2 training)

While it is made, the folder out.bin.partial holds what is done; an interrupted run goes on from
there, and ends with the same file. Memory follows neither the corpus nor, where GPT-2's split
pattern is used, the length of a document.
"""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np import __version__
from gpt2np.data.batches import PART_DTYPE, Batch, BatchEncoder, read_batches
from gpt2np.data.corpus import UnreadableFileError, find_files
from gpt2np.data.resume import Checkpoint, GrowingFiles, digests
from gpt2np.data.workers import map_in_order
from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.tokenizer.tokenizer import Tokenizer
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

SUFFIXES = (".npz", ".npy", ".bin")

_CHECKPOINT_SECONDS = 1.0
_ROWS_AT_ONCE = 1 << 16
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of zip files: the same chunks make the same file on any day


@dataclass(frozen=True)
class DatasetOptions:
    """How a corpus becomes a dataset.

    Attributes:
        field: the field of a .jsonl line that holds the document.
        combine: in an .npz, documents are joined until a chunk has so many characters.
        skip_errors: leave out files that can't be read, instead of giving up.
        processes: how many encode at the same time.
    """

    field: str = "text"
    combine: int = 50_000
    skip_errors: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        for name in ("combine", "processes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"{name} is {getattr(self, name)}; it must be at least 1"
                )


@dataclass(frozen=True)
class Dataset:
    """What was written: the file, how many documents and ids, and the ids' type."""

    path: Path
    documents: int
    ids: int
    dtype: str


@dataclass(frozen=True)
class Watcher:
    """Who wants to know how it goes.

    Attributes:
        progress: is called with the number of bytes of the files that have been done.
        resumed: is called with that number, once, when an interrupted run is gone on with.
        skipped: is called with what is wrong with each file that is left out.
        restarted: is called if an earlier run's files or options were others, and it is let go.
    """

    resumed: Callable[[int], object] = lambda done: None
    progress: Callable[[int], object] = lambda done: None
    skipped: Callable[[UnreadableFileError], object] = lambda error: None
    restarted: Callable[[], object] = lambda: None


def check_output(out: Path) -> None:
    """Raises InvalidArgumentError unless `out` ends in one of SUFFIXES and can be a file."""
    if out.suffix not in SUFFIXES:
        raise InvalidArgumentError(
            f"{out}: the name's end tells the format; give one that ends in {', '.join(SUFFIXES)}"
        )
    if not out.parent.is_dir():
        raise InvalidArgumentError(f"the folder {out.parent} does not exist; make it first")
    if out.is_dir():
        raise InvalidArgumentError(f"{out} is a folder; choose another name")


def find_inputs(paths: Iterable[str | Path], out: Path) -> list[Path]:
    """The files that `paths` name (see `find_files`), sorted, without `out` and its unfinished one.

    Raises:
        InvalidArgumentError: there are none.
    """
    own = {out.resolve(), partial_folder(out).resolve()}
    files = [file for file in find_files(paths) if own.isdisjoint(_and_above(file.resolve()))]
    if not files:
        raise InvalidArgumentError(f"there is no file to read, apart from the output {out}")
    return files


def _and_above(file: Path) -> list[Path]:
    return [file, *file.parents]


def partial_folder(out: Path) -> Path:
    """Where an unfinished `out` is kept."""
    return out.with_name(f"{out.name}.partial")


def encode_dataset(
    files: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer,
    options: DatasetOptions | None = None,
    watcher: Watcher | None = None,
) -> Dataset:
    """Encode `files`, in order, to the dataset `out`; what is there is replaced.

    Args:
        files: text, .jsonl, either also as .gz, and .npz, whose chunks remain what they are.
            `<|endoftext|>` parts the documents of a text; other special tokens are plain text.
        out: ends in .npz, .npy or .bin.
        tokenizer: encodes; it must have `<|endoftext|>`.
        options: see `DatasetOptions`.
        watcher: see `Watcher`.

    Raises:
        InvalidArgumentError: a file can't be read, the files hold no text, or what `check_output`
            says. `out` is then as it was before.
        OSError: it can't be written.
    """
    options = options or DatasetOptions()
    check_output(out)
    if tokenizer.end_of_text is None:
        raise InvalidArgumentError(
            f"the vocabulary has no {END_OF_TEXT}, with which documents end; choose another model"
        )
    with GrowingFiles(partial_folder(out), ("ids", "parts")) as growing:
        writer = _Writer(growing, files, _task(tokenizer.vocabulary, options), watcher or Watcher())
        try:
            writer.write(tokenizer, options)
        except BrokenExecutor as error:
            raise GPT2NPError(
                "a process that was encoding is gone, perhaps for want of memory; fewer need less"
            ) from error
        growing.close()
        dataset = _finish(growing, out, BatchEncoder(tokenizer).dtype, options.combine)
        growing.remove()
    return dataset


def _task(vocabulary: Vocabulary, options: DatasetOptions) -> str:
    """What the ids depend on, besides the files."""
    digest = sha256(repr(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps([__version__, digest, options.field, options.skip_errors])


@dataclass
class _Writer:
    """Appends batches to the growing files, and remembers how far it is."""

    growing: GrowingFiles
    files: Sequence[Path]
    task: str
    watcher: Watcher
    digests: list[str] = field(init=False)
    ends: list[int] = field(init=False)  # of each file, in bytes since the first file's beginning
    at: Checkpoint = field(init=False)
    _saved: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.digests = digests(self.task, self.files)
        self.ends = [*accumulate(file.stat().st_size for file in self.files)]
        self.at = self.growing.resume(self.digests)

    def write(self, tokenizer: Tokenizer, options: DatasetOptions) -> None:
        """Encode and append what has not been."""
        batches = read_batches(
            self.files,
            tokenizer.vocabulary,
            field=options.field,
            skip_errors=options.skip_errors,
            start=(self.at.files, self.at.batches),
        )
        if self.at.done:
            self.watcher.resumed(self.at.done)
        elif self.growing.begun_anew:
            self.watcher.restarted()
        encoder = BatchEncoder(tokenizer)
        for batch, encoded in map_in_order(encoder, batches, options.processes):
            self._add(batch, encoded)
            self.watcher.progress(self.at.done)

    def _add(self, batch: Batch, encoded: tuple[bytes, bytes]) -> None:
        if batch.error:
            self.watcher.skipped(batch.error)
            self.growing.cut(self.at.file_lengths)
        self.growing.append(*encoded)
        lengths, end = self.growing.lengths, self.ends[batch.file]
        digest = self.digests[batch.file + 1]
        if batch.ends:
            self.at = Checkpoint(batch.file + 1, 0, end, lengths, lengths, digest)
        else:
            batches, done = self.at.batches + 1, min(self.at.done + batch.bytes, end)
            before = self.at.file_lengths
            self.at = Checkpoint(batch.file, batches, done, lengths, before, digest)
        if time.monotonic() >= self._saved + _CHECKPOINT_SECONDS:
            self.growing.save(self.at)
            self._saved = time.monotonic()


def _finish(growing: GrowingFiles, out: Path, dtype: np.dtype[Any], combine: int) -> Dataset:
    """Make the file `out` of the ids and parts."""
    ids, parts = growing.paths
    documents = sum(int(rows["ends"].sum()) for rows in _rows(parts))
    if not documents:
        raise InvalidArgumentError("there is no text in the files; nothing can be encoded")
    count = ids.stat().st_size // dtype.itemsize
    finished = growing.folder / "finished"
    if out.suffix == ".bin":
        finished = ids
    elif out.suffix == ".npy":
        _write_npy(finished, ids, dtype, count)
    else:
        _write_npz(finished, np.memmap(ids, dtype, "r"), chunk_bounds(_rows(parts), combine))
    finished.replace(out)
    return Dataset(out, documents, count, dtype.name)


def _rows(parts: Path) -> Iterator[NDArray[np.void]]:
    with parts.open("rb") as file:
        while len(rows := np.fromfile(file, PART_DTYPE, _ROWS_AT_ONCE)):
            yield rows


def _write_npy(path: Path, ids: Path, dtype: np.dtype[Any], count: int) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    with path.open("wb") as file, ids.open("rb") as content:
        np.lib.format.write_array_header_1_0(file, header)
        shutil.copyfileobj(content, file, 1 << 20)


def _write_npz(path: Path, ids: NDArray[Any], bounds: Iterator[tuple[int, int]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, (start, end) in enumerate(bounds):
            entry = zipfile.ZipInfo(f"arr_{number}.npy", _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(ids[start:end]))


def chunk_bounds(rows: Iterator[NDArray[np.void]], combine: int) -> Iterator[tuple[int, int]]:
    """Where in the ids the chunks of an .npz begin and end.

    Documents are joined until they have `combine` characters, those of `<|endoftext|>` between
    them counted, as in the encode.py of GPT-2's training. None begins or ends with one.

    Args:
        rows: arrays of PART_DTYPE.
        combine: the number of characters.
    """
    start = end = characters = 0
    for ids, length, ends, alone in (row for array in rows for row in array.tolist()):
        if alone and end > start:
            yield start, end - 1
            start, characters = end, 0
        end += ids
        characters += length
        if alone or (ends and characters >= combine):
            yield start, end - 1
            start, characters = end, 0
        elif ends:
            characters += len(END_OF_TEXT)
    if end > start:
        yield start, end - 1
