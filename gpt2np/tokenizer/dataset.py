"""Encoding of a corpus to one file of token ids, in a format that training programs read.

    out.bin   raw ids; each document is followed by the id of <|endoftext|> (nanoGPT)
    out.npy   the ids of out.bin as a NumPy array
    out.npz   arrays arr_0, arr_1, …: documents joined by <|endoftext|> (nshepperd's gpt-2)

Until the file out.bin is complete, the folder out.bin.partial holds the ids encoded so far. A call
after an interruption continues from that folder, with an equal result. Memory does not grow with
the corpus. With GPT-2's pre-tokenizer, memory does not grow with the length of a document either.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np import __version__
from gpt2np.data import END_OF_TEXT
from gpt2np.data.append_log import (
    AppendLog,
    JobCallbacks,
    ResumePoint,
    Task,
    input_digests,
    partial_folder,
)
from gpt2np.data.files import check_output_file, followed
from gpt2np.data.workers import check_processes, map_in_order
from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.tokenizer.batches import PART_DTYPE, encode_batch, read_batches
from gpt2np.tokenizer.tokenizer import Tokenizer

SUFFIXES = (".npz", ".npy", ".bin")

_RECORDS_PER_READ = 1 << 16
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal arrays make equal files


@dataclass(frozen=True)
class DatasetOptions:
    """Options of `encode_dataset`, which encodes a corpus to a file of token ids."""

    field: str = "text"  # field of a .jsonl line that holds the document
    combine: int = 50_000  # in an .npz, join documents until they have this many characters
    skip_errors: bool = False  # skip files that can't be read instead of raising an error
    processes: int = 1  # number of worker processes

    def __post_init__(self) -> None:
        if self.combine < 1:
            raise InvalidArgumentError(f"combine is {self.combine}; it must be at least 1")
        check_processes(self.processes)


@dataclass(frozen=True)
class Dataset:
    """A file of token ids that `encode_dataset` has written, and its size."""

    path: Path
    documents: int  # number of documents
    ids: int  # number of token ids
    dtype: str  # NumPy name of the type of the ids


def check_output(out: Path, *, overwrite: bool = True) -> None:
    """Raise a GPT2NPError if the suffix of `out` is not in SUFFIXES, or `out` can't be written."""
    if out.suffix not in SUFFIXES:
        raise InvalidArgumentError(
            f"{out}: the suffix selects the format; use one of {', '.join(SUFFIXES)}"
        )
    check_output_file(out, overwrite=overwrite)


def encode_dataset(
    files: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer,
    options: DatasetOptions | None = None,
    callbacks: JobCallbacks | None = None,
    *,
    force: bool = False,
) -> Dataset:
    """Encode `files`, in order, to the dataset `out`; an existing file `out` is replaced.

    The suffix of `out`, one of SUFFIXES, selects the format. Input files are text or .jsonl, which
    may be compressed (.gz), or .npz files of token ids, which are copied. The special token
    `<|endoftext|>` separates documents. Other special tokens are encoded as plain text.

    A call resumes an interrupted call; `files` may have additional files at the end. If options or
    encoded files have changed, `force` discards the invalid results. After an error, an existing
    file `out` is unchanged. The progress that `callbacks` receive is in bytes of input.

    Raises:
        InvalidArgumentError: a file can't be read, the files have no text, the vocabulary has no
            `<|endoftext|>`, `out` can't be written, or results would be discarded without `force`.
        OSError: the output can't be written.
        GPT2NPError: another job writes to `out`, a worker process dies, or a file changes while
            the call runs.
    """
    options, callbacks = options or DatasetOptions(), callbacks or JobCallbacks()
    check_output(out)
    if tokenizer.eos_token_id is None:
        raise InvalidArgumentError(
            f"the vocabulary has no {END_OF_TEXT} to end documents with; choose another model"
        )
    with AppendLog(partial_folder(out), ("ids", "parts")) as log:
        digests = input_digests(files)
        names = {"field": options.field, "skip_errors": options.skip_errors}
        task = Task(
            {"version of gpt2np": __version__, **names},
            {"the vocabulary": tokenizer.fingerprint},
            lambda numbers: dict(enumerate(digests)),
            lambda start, stop: _describe_files(files[start:stop]),
            harmless={"skip_errors": True},  # files read without skip_errors have no errors
        )
        point = log.resume(task, callbacks, force=force)
        _encode_batches(log, files, tokenizer, options, callbacks, digests, point)
        log.close()
        for file, before, after in zip(files, digests[1:], input_digests(files)[1:], strict=True):
            if before != after:
                raise GPT2NPError(
                    f"{file} has changed while it was encoded; encode again with --force"
                )
        dataset = _finish(log, out, tokenizer.encode_to_numpy("").dtype, options.combine)
        log.remove()
    return dataset


def _describe_files(files: Sequence[Path]) -> str:
    if not files:
        return "the list of input files"
    if len(files) == 1:
        return f"{files[0]}"
    return f"a file from {files[0]} to {files[-1]}"


def _encode_batches(
    log: AppendLog,
    files: Sequence[Path],
    tokenizer: Tokenizer,
    options: DatasetOptions,
    callbacks: JobCallbacks,
    digests: Sequence[str],
    point: ResumePoint,
) -> None:
    """Encode the files from the resume point `point` on, and append the ids to the log."""
    file_ends = [*accumulate(file.stat().st_size for file in files)]  # cumulative sizes
    encode, n_tokens = partial(encode_batch, tokenizer=tokenizer), 0
    itemsize = tokenizer.encode_to_numpy("").itemsize
    start = (point.files, point.batches)
    batches = read_batches(
        files, tokenizer, field=options.field, skip_errors=options.skip_errors, start=start
    )
    try:
        for batch, (ids, records) in map_in_order(encode, batches, options.processes):
            if batch.error:
                callbacks.on_skip(batch.error)
                log.truncate(point.rollback_lengths)
            log.append(ids, records)
            n_tokens += len(ids) // itemsize
            lengths, file_end = log.lengths, file_ends[batch.file]
            digest, checksums = digests[batch.file + 1], log.checksums
            if batch.ends_file:
                n_files = batch.file + 1
                point = ResumePoint(n_files, 0, file_end, lengths, lengths, digest, checksums)
            else:
                point = replace(
                    point,
                    batches=point.batches + 1,
                    done=min(point.done + batch.nbytes, file_end),
                    lengths=lengths,
                    digest=digest,
                    checksums=checksums,
                )
            log.save(point)
            callbacks.on_progress(point.done, n_tokens)
    except BrokenExecutor as error:
        raise GPT2NPError(
            "a worker process died, perhaps out of memory; try fewer processes"
        ) from error


def _finish(log: AppendLog, out: Path, dtype: np.dtype[Any], combine: int) -> Dataset:
    """Write the dataset `out` from the log, which has all token ids and document lengths."""
    ids, parts = log.paths
    documents = sum(int(records["ends_document"].sum()) for records in _read_records(parts))
    if not documents:
        raise InvalidArgumentError("the files have no text; nothing can be encoded")
    n_ids = ids.stat().st_size // dtype.itemsize
    finished = log.scratch
    if out.suffix == ".bin":
        finished = ids
    elif out.suffix == ".npy":
        header = {"descr": dtype.str, "fortran_order": False, "shape": (n_ids,)}
        with finished.open("wb") as file, ids.open("rb") as content:
            np.lib.format.write_array_header_1_0(file, header)
            shutil.copyfileobj(content, file, 1 << 20)
    else:
        arrays = np.memmap(ids, dtype, "r")
        with zipfile.ZipFile(finished, "w") as archive:
            bounds = array_bounds(_read_records(parts), combine)
            for number, (start, end) in enumerate(bounds):
                entry = zipfile.ZipInfo(f"arr_{number}.npy", _ZIP_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(arrays[start:end]))
    finished.replace(followed(out))
    return Dataset(out, documents, n_ids, dtype.name)


def _read_records(parts: Path) -> Iterator[NDArray[np.void]]:
    with parts.open("rb") as file:
        while len(records := np.fromfile(file, PART_DTYPE, _RECORDS_PER_READ)):
            yield records


def array_bounds(batches: Iterator[NDArray[np.void]], combine: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end), as indices into the token ids, for each array of the .npz output.

    Documents are joined until they have `combine` characters, including the `<|endoftext|>` between
    them, as in encode.py of nshepperd's gpt-2. No array begins or ends with `<|endoftext|>`.
    `batches` yields arrays of PART_DTYPE: the lengths of all documents, in order.
    """
    start = end = characters = 0
    for n_ids, n_characters, ends_document, is_array in (
        record for records in batches for record in records.tolist()
    ):
        if is_array and end > start:
            yield start, end - 1
            start, characters = end, 0
        end += n_ids
        characters += n_characters
        if is_array or (ends_document and characters >= combine):
            yield start, end - 1
            start, characters = end, 0
        elif ends_document:
            characters += len(END_OF_TEXT)
    if end > start:
        yield start, end - 1
