"""Encoding of a corpus to one file of token ids, in a format that training programs read.

    out.bin   raw ids; each document is followed by the id of <|endoftext|> (nanoGPT)
    out.npy   the ids of out.bin as a NumPy array
    out.npz   arrays arr_0, arr_1, …: documents joined by <|endoftext|> (nshepperd's gpt-2)

A call after an interruption goes on, with an equal result (`gpt2np.data.resumable`). Memory grows
with the longest document, not with the corpus.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.data import END_OF_TEXT
from gpt2np.data.corpus import kind_of, read_corpus_texts
from gpt2np.data.corpus_job import DocumentBatch, MapItems, corpus_job, read_batches
from gpt2np.data.files import file_name
from gpt2np.data.options import DatasetOptions, Special
from gpt2np.data.resumable import JobCallbacks, Position, Results, check_output, run_job
from gpt2np.data.workers import map_in_order
from gpt2np.errors import InvalidArgumentError, errors_at
from gpt2np.tokenizer.normalizer import allowed_special, check_special
from gpt2np.tokenizer.tokenizer import Tokenizer

SUFFIXES = (".npz", ".npy", ".bin")

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal arrays make equal files

LENGTH_DTYPE = np.dtype([("ids", "<u4"), ("characters", "<u4")])
"""Record of a document: number of token ids with the last <|endoftext|>, number of characters."""

BATCH_SIZE = 1 << 20  # characters


@dataclass(frozen=True)
class Dataset:
    """A file of token ids that `encode_dataset` has written, and its size."""

    path: Path
    documents: int  # number of documents
    ids: int  # number of token ids
    dtype: str  # NumPy name of the type of the ids


def encode_dataset(
    files: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer,
    options: DatasetOptions | None = None,
    callbacks: JobCallbacks | None = None,
    *,
    force: bool = False,
    map_items: MapItems | None = None,
) -> Dataset:
    """Encode `files`, in order, to the dataset `out`.

    The suffix of `out`, one of SUFFIXES, selects the format. Input files are text, .jsonl, .csv,
    .tsv or .parquet files; all but .parquet may be compressed (.gz). The special token
    `<|endoftext|>` separates documents; `options.special` decides on others.

    A call resumes an interrupted call; `files` may have additional files at the end. `force`
    overwrites an existing file, and discards results whose options or input have changed. The
    progress that `callbacks` receive is in bytes of input. `map_items` may encode the batches
    elsewhere; see `gpt2np.distributed`.

    Raises:
        InvalidArgumentError: a file can't be read, the files have no text, the vocabulary has no
            `<|endoftext|>`, `out` can't be written; or `out` exists, or results would be discarded,
            without `force`.
        OSError: the output can't be written.
        GPT2NPError: another job writes to `out`, a worker process dies, or a file changes while
            the call runs.
    """
    options = options or DatasetOptions()
    check_output(out, SUFFIXES, force=force)
    if tokenizer.eos_token_id is None:
        raise InvalidArgumentError(
            f"the vocabulary has no {END_OF_TEXT} to end documents with; choose another model"
        )
    names = [*map(file_name, files)]
    make_encoder = partial(partial, encode_batch, tokenizer, options.special, names)
    map_items = map_items or partial(map_in_order, processes=options.processes)
    read = partial(_read_texts, field=options.field)

    def run(start: Position) -> Iterator[tuple[DocumentBatch[str], Results]]:
        items = read_batches(files, read, BATCH_SIZE, skip_errors=options.skip_errors, start=start)
        return map_items(make_encoder, items)

    dtype = tokenizer.encode_to_numpy("").dtype
    vocabulary = [tokenizer.fingerprint, tokenizer.eos_token_id]
    job = corpus_job(
        files,
        {"field": options.field, "special": options.special, "the vocabulary": vocabulary},
        run,
        partial(_assemble, dtype=dtype, combine=options.combine),
        n_streams=2,
    )
    documents, n_ids = run_job(job, out, callbacks, force=force).result
    if not documents:
        raise InvalidArgumentError("the files have no text; nothing can be encoded")
    return Dataset(out, documents, n_ids, dtype.name)


def _read_texts(file: Path, field: str) -> Iterator[tuple[str, int, int]]:
    for text in read_corpus_texts([file], field):
        yield text, len(text), len(text.encode())


def _assemble(
    streams: Sequence[Path], out: Path, dtype: np.dtype[Any], combine: int
) -> tuple[int, int]:
    """Write a dataset from the streams of ids and lengths; return its numbers of documents and ids.

    A .bin file is the stream of ids itself.
    """
    records = np.fromfile(streams[1], LENGTH_DTYPE)
    n_ids = streams[0].stat().st_size // dtype.itemsize
    kind = kind_of(out)
    if not len(records) or kind == ".bin":
        return len(records), n_ids
    with streams[0].open("rb") as ids:
        if kind == ".npy":
            with out.open("wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (n_ids,)}
                np.lib.format.write_array_header_1_0(file, header)
                shutil.copyfileobj(ids, file)
            return len(records), n_ids
        lengths = [*array_lengths(records, combine)]
        _write_npz((np.fromfile(ids, dtype, length)[:-1] for length in lengths), out)
    return len(records), n_ids - len(lengths)


def _write_npz(arrays: Iterator[NDArray[Any]], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, array in enumerate(arrays):
            entry = zipfile.ZipInfo(f"arr_{number}.npy", _ZIP_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)


def array_lengths(records: NDArray[np.void], combine: int) -> Iterator[int]:
    """Yield the number of ids, with a last <|endoftext|>, of each array of the .npz output.

    Documents are joined until they have `combine` characters, including the `<|endoftext|>` between
    them, as in encode.py of nshepperd's gpt-2. `records` are the LENGTH_DTYPE of all documents.
    """
    length = characters = 0
    for n_ids, n_characters in records.tolist():
        length += n_ids
        characters += n_characters
        if characters >= combine:
            yield length
            length = characters = 0
        else:
            characters += len(END_OF_TEXT)
    if length:
        yield length


def encode_batch(
    tokenizer: Tokenizer, special: Special, names: Sequence[str], batch: DocumentBatch[str]
) -> Results:
    """Encode a batch to the token ids, and to LENGTH_DTYPE records of the documents.

    Raises InvalidArgumentError, which names the file, if `special` is "error" and a text has a
    special token.
    """
    allowed = allowed_special(special)
    ids, records = bytearray(), []
    end = np.array([tokenizer.eos_token_id], tokenizer.encode_to_numpy("").dtype)
    for text in batch.items:
        with errors_at(f"{names[batch.file]}: "):
            check_special(text, tokenizer.special_tokens, special)
        encoded = tokenizer.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        ids += encoded.tobytes() + end.tobytes()
        records.append((len(encoded) + 1, len(text)))
    contents = bytes(ids), np.array(records, LENGTH_DTYPE).tobytes()
    problems = [batch.error] if batch.error else []
    return Results(contents, problems, len(ids) // end.itemsize)
