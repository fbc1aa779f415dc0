"""Encoding of a corpus to one file of token ids, in a format that training programs read.

    out.bin   raw ids; each document is followed by the id of <|endoftext|> (nanoGPT)
    out.npy   the ids of out.bin as a NumPy array
    out.npz   arrays arr_0, arr_1, …: documents joined by <|endoftext|> (nshepperd's gpt-2)
    out.parquet   rows: the number of each document, from 1, and its ids

A call after an interruption goes on, with an equal result (`gpt2np.data.resumable`). Memory does
not grow with the corpus; except for .npz and .parquet, and with GPT-2's pre-tokenizer, nor does it
grow with the length of a document.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.data import END_OF_TEXT
from gpt2np.data.corpus_job import DocumentBatch, RunBatches, corpus_job, read_batches
from gpt2np.data.files import check_output_file
from gpt2np.data.options import DatasetOptions
from gpt2np.data.parquet import import_pyarrow
from gpt2np.data.resumable import JobCallbacks, ReadStream, Results, run_job
from gpt2np.data.rows import check_max_rows, write_output
from gpt2np.data.workers import check_processes, map_in_order
from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.tokenizer import batches
from gpt2np.tokenizer.batches import PART_DTYPE
from gpt2np.tokenizer.tokenizer import Tokenizer

SUFFIXES = (".npz", ".npy", ".bin", ".parquet")
COLUMNS = {"document": int, "ids": [int]}
"""The columns of a .parquet file of ids; see `gpt2np.data.parquet.Columns`."""

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal arrays make equal files


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
    if out.suffix == ".parquet":
        import_pyarrow()
    check_output_file(out, overwrite=overwrite)


def encode_dataset(
    files: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer,
    options: DatasetOptions | None = None,
    callbacks: JobCallbacks | None = None,
    *,
    force: bool = False,
    run: RunBatches | None = None,
) -> Dataset:
    """Encode `files`, in order, to the dataset `out`.

    The suffix of `out`, one of SUFFIXES, selects the format. Input files are text, .jsonl, .csv,
    .tsv or .parquet files, or .npz files of token ids, which are copied. Text, .jsonl, .csv and
    .tsv files may be compressed (.gz). The special token `<|endoftext|>` separates documents. Other
    special tokens are encoded as plain text.

    A call resumes an interrupted call; `files` may have additional files at the end. `force`
    overwrites an existing file, and discards results whose options or input have changed. The
    progress that `callbacks` receive is in bytes of input. `run` encodes the batches elsewhere; see
    `gpt2np.distributed.jobs`.

    Raises:
        InvalidArgumentError: a file can't be read, the files have no text, the vocabulary has no
            `<|endoftext|>`, `out` can't be written; or `out` exists, or results would be discarded,
            without `force`.
        OSError: the output can't be written.
        GPT2NPError: another job writes to `out`, a worker process dies, or a file changes while
            the call runs.
    """
    options = options or DatasetOptions()
    _check_arguments(out, tokenizer, options)
    dtype = tokenizer.encode_to_numpy("").dtype
    job = corpus_job(
        files,
        {"field": options.field, "skip_errors": options.skip_errors},
        {"the vocabulary": tokenizer.fingerprint},
        run or partial(_encode_files, tokenizer=tokenizer, options=options),
        partial(_assemble, dtype=dtype, options=options),
        harmless={"skip_errors": True},  # the files that were read have no errors
    )
    try:
        documents, n_ids = run_job(job, out, callbacks, force=force).result
    except BrokenExecutor as error:
        raise GPT2NPError(
            "a worker process died, perhaps out of memory; try fewer processes"
        ) from error
    if not documents:
        raise InvalidArgumentError("the files have no text; nothing can be encoded")
    return Dataset(out, documents, n_ids, dtype.name)


def _encode_files(
    files: Sequence[Path], start: tuple[int, int], tokenizer: Tokenizer, options: DatasetOptions
) -> Iterator[tuple[DocumentBatch[Any], Results]]:
    read = partial(batches.read_parts_or_arrays, tokenizer=tokenizer, field=options.field)
    size, skip_errors = batches.BATCH_SIZE, options.skip_errors
    items = read_batches(files, read, size, skip_errors=skip_errors, start=start)
    encode = partial(batches.encode_batch, tokenizer=tokenizer)
    return map_in_order(encode, items, options.processes)


def _check_arguments(out: Path, tokenizer: Tokenizer, options: DatasetOptions) -> None:
    check_processes(options.processes)
    check_max_rows(out, options.max_rows_per_file)
    check_output(out)
    if options.max_rows_per_file is not None and out.suffix != ".parquet":
        raise InvalidArgumentError(
            "{max_rows_per_file} needs a .parquet output, not {0}",
            out,
            max_rows_per_file=options.max_rows_per_file,
        )
    if tokenizer.eos_token_id is None:
        raise InvalidArgumentError(
            f"the vocabulary has no {END_OF_TEXT} to end documents with; choose another model"
        )


def _assemble(
    read: ReadStream, path: Path, dtype: np.dtype[Any], options: DatasetOptions
) -> tuple[int, int]:
    """Write a dataset from the streams of ids and lengths; return the number of documents and ids.

    Nothing is written if there is no document.
    """
    documents = sum(int(records["ends_document"].sum()) for records in _read_records(read))
    n_ids = sum(int(records["ids"].sum()) for records in _read_records(read))
    if not documents:
        return 0, 0
    if path.suffix in (".bin", ".npy"):
        with path.open("wb") as file:
            if path.suffix == ".npy":
                header = {"descr": dtype.str, "fortran_order": False, "shape": (n_ids,)}
                np.lib.format.write_array_header_1_0(file, header)
            file.writelines(read(0))
        return documents, n_ids
    combine = 0 if path.suffix == ".parquet" else options.combine  # 0: an array a document
    bounds = array_bounds(_read_records(read), combine)
    arrays = _split_ids(read, dtype, (end - start + 1 for start, end in bounds))
    if path.suffix == ".parquet":
        rows = ({"document": number, "ids": ids} for number, ids in enumerate(arrays, 1))
        write_output(rows, path, COLUMNS, options.max_rows_per_file)
    else:
        _write_npz(arrays, path)
    return documents, n_ids


def _write_npz(arrays: Iterator[NDArray[Any]], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, array in enumerate(arrays):
            entry = zipfile.ZipInfo(f"arr_{number}.npy", _ZIP_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)


def _split_ids(
    read: ReadStream, dtype: np.dtype[Any], lengths: Iterator[int]
) -> Iterator[NDArray[Any]]:
    """Yield arrays of the next `lengths` ids, each without its last id, <|endoftext|>."""
    contents, unread = read(0), bytearray()
    for length in lengths:
        n_bytes = length * dtype.itemsize
        while len(unread) < n_bytes:
            unread += next(contents)
        yield np.frombuffer(bytes(unread[:n_bytes]), dtype)[:-1]
        del unread[:n_bytes]


def _read_records(read: ReadStream) -> Iterator[NDArray[np.void]]:
    return (np.frombuffer(content, PART_DTYPE) for content in read(1))


def array_bounds(groups: Iterator[NDArray[np.void]], combine: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end), as indices into the token ids, for each array of the .npz output.

    Documents are joined until they have `combine` characters, including the `<|endoftext|>` between
    them, as in encode.py of nshepperd's gpt-2. No array begins or ends with `<|endoftext|>`.
    `groups` yields arrays of PART_DTYPE: the lengths of all documents, in order.
    """
    start = end = characters = 0
    records = chain.from_iterable(group.tolist() for group in groups)
    for n_ids, n_characters, ends_document, is_array in records:
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
