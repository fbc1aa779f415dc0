"""Encoding of a corpus to one file of token ids, in a format that training programs read.

    out.bin   raw ids; each document is followed by the id of <|endoftext|> (nanoGPT)
    out.npy   the ids of out.bin as a NumPy array
    out.npz   arrays arr_0, arr_1, …: documents joined by <|endoftext|> (nshepperd's gpt-2)
    out.parquet   rows: the number of each document, from 1, and its ids

Until the file out.bin is complete, the folder out.bin.partial holds the ids encoded so far. A call
after an interruption continues from that folder, with an equal result. Memory does not grow with
the corpus. With GPT-2's pre-tokenizer, memory does not grow with the length of a document either.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.data import END_OF_TEXT
from gpt2np.data.append_log import AppendLog, JobCallbacks
from gpt2np.data.files import check_output_file, followed
from gpt2np.data.parquet import check_pyarrow
from gpt2np.data.pipeline import (
    Batch,
    CorpusInput,
    Job,
    Results,
    RunBatches,
    check_max_rows,
    read_batches,
    run_job,
    write_result,
)
from gpt2np.data.workers import check_processes, map_in_order
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument
from gpt2np.tokenizer import batches
from gpt2np.tokenizer.batches import PART_DTYPE
from gpt2np.tokenizer.tokenizer import Tokenizer

SUFFIXES = (".npz", ".npy", ".bin", ".parquet")
COLUMNS = {"document": int, "ids": [int]}
"""The columns of a .parquet file of ids; see `gpt2np.data.parquet.Columns`."""

_RECORDS_PER_READ = 1 << 16
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal arrays make equal files


@dataclass(frozen=True)
class DatasetOptions:
    """Options of `encode_dataset`, which encodes a corpus to a file of token ids."""

    field: str = "text"  # field of a .jsonl line that holds the document
    combine: int = 50_000  # in an .npz, join documents until they have this many characters
    skip_errors: bool = False  # skip files that can't be read instead of raising an error
    processes: int = 1  # number of worker processes
    max_rows_per_file: int | None = None  # make a .parquet output a folder of files of so many rows

    def __post_init__(self) -> None:
        check_argument(self.combine >= 1, "combine", self.combine, "at least 1")
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
    if out.suffix == ".parquet":
        check_pyarrow()
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
    """Encode `files`, in order, to the dataset `out`; an existing file `out` is replaced.

    The suffix of `out`, one of SUFFIXES, selects the format. Input files are text or .jsonl, which
    may be compressed (.gz), or .npz files of token ids, which are copied. The special token
    `<|endoftext|>` separates documents. Other special tokens are encoded as plain text.

    A call resumes an interrupted call; `files` may have additional files at the end. If options or
    encoded files have changed, `force` discards the invalid results. After an error, an existing
    file `out` is unchanged. The progress that `callbacks` receive is in bytes of input. `run`
    encodes the batches elsewhere; see `gpt2np.distributed.jobs`.

    Raises:
        InvalidArgumentError: a file can't be read, the files have no text, the vocabulary has no
            `<|endoftext|>`, `out` can't be written, or results would be discarded without `force`.
        OSError: the output can't be written.
        GPT2NPError: another job writes to `out`, a worker process dies, or a file changes while
            the call runs.
    """
    options = options or DatasetOptions()
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
    corpus = CorpusInput(files)
    settings = {"field": options.field, "skip_errors": options.skip_errors}
    fingerprints = {"the vocabulary": tokenizer.fingerprint}
    encode = partial(batches.encode_batch, tokenizer=tokenizer)

    def run_here(
        files: Sequence[Path], start: tuple[int, int]
    ) -> Iterator[tuple[Batch[Any], Results]]:
        read = partial(batches.read_parts_or_arrays, tokenizer=tokenizer, field=options.field)
        size, skip_errors = batches.BATCH_SIZE, options.skip_errors
        items = read_batches(files, read, size, skip_errors=skip_errors, start=start)
        return map_in_order(encode, items, options.processes)

    job = Job(
        # files that are read without skip_errors have no errors
        corpus.task(settings, fingerprints, harmless={"skip_errors": True}),
        ("ids", "parts"),
        lambda point: corpus.steps(point, run or run_here),
        lambda log: _finish(log, out, tokenizer.encode_to_numpy("").dtype, options),
    )
    try:
        dataset: Dataset = run_job(job, out, callbacks, force=force).result
    except BrokenExecutor as error:
        raise GPT2NPError(
            "a worker process died, perhaps out of memory; try fewer processes"
        ) from error
    return dataset


def _finish(log: AppendLog, out: Path, dtype: np.dtype[Any], options: DatasetOptions) -> Dataset:
    """Write the dataset `out` from the log, which has all token ids and document lengths."""
    ids, parts, _ = log.paths
    documents = sum(int(records["ends_document"].sum()) for records in _read_records(parts))
    if not documents:
        log.remove()
        raise InvalidArgumentError("the files have no text; nothing can be encoded")
    n_ids = ids.stat().st_size // dtype.itemsize
    dataset = Dataset(out, documents, n_ids, dtype.name)
    finished = log.scratch
    if out.suffix == ".parquet":
        rows = _document_rows(np.memmap(ids, dtype, "r"), _read_records(parts))
        write_result(rows, documents, COLUMNS, log, out, options.max_rows_per_file)
        return dataset
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
            bounds = array_bounds(_read_records(parts), options.combine)
            for number, (start, end) in enumerate(bounds):
                entry = zipfile.ZipInfo(f"arr_{number}.npy", _ZIP_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(arrays[start:end]))
    finished.replace(followed(out))
    return dataset


def _document_rows(
    ids: NDArray[Any], parts: Iterator[NDArray[np.void]]
) -> Iterator[dict[str, Any]]:
    """Yield a row of COLUMNS for each document; `parts` are arrays of PART_DTYPE."""
    number, start, end = 1, 0, 0
    for n_ids, _, ends_document, _ in (part for group in parts for part in group.tolist()):
        end += n_ids
        if ends_document:  # the last id is that of <|endoftext|>
            yield {"document": number, "ids": ids[start : end - 1]}
            number, start = number + 1, end


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
