"""Reading of a corpus in batches, and encoding of a batch to bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.corpus import CorpusOptions, UnreadableFileError, read_parts
from gpt2np.tokenizer.tokenizer import Tokenizer

PART_DTYPE = np.dtype(
    [("ids", "<u4"), ("characters", "<u4"), ("ends_document", "?"), ("is_array", "?")]
)
"""Record of a document or a part of it: number of token ids, number of characters, and two flags.

The ids include the <|endoftext|> at the end of a document. The flag `is_array` marks an array from
an .npz input file. The records determine the arrays of an .npz output file."""

_BATCH_SIZE = 1 << 20  # in characters or, for arrays, token ids
_NPZ_ERRORS = (  # raised by zipfile and NumPy for a file that is damaged or not an .npz
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


Part = tuple[str | NDArray[np.integer[Any]], bool]
"""A document, or a part of a long document, and whether this is the last part of its document.

The content is text, or the token ids of an array in an .npz file."""


class Batch(NamedTuple):
    """Consecutive documents of a file, or parts of documents, which are encoded together."""

    file: int  # index of the file
    parts: list[Part]  # documents and parts of documents
    ends_file: bool  # whether this is the last batch of the file
    error: UnreadableFileError | None = None  # reason to skip the file, if any

    @property
    def nbytes(self) -> int:
        """Size of the batch's documents in bytes: texts in UTF-8, and arrays of token ids."""
        return sum(
            len(content.encode()) if isinstance(content, str) else content.nbytes
            for content, _ in self.parts
        )


def read_batches(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    field: str = "text",
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Batch]:
    """Yield the documents of `files` in batches, which are the same in every call.

    `start` is the first batch to yield: (file index, batch index within the file). Files are text
    or .jsonl, which may be compressed (.gz), or .npz; each array of an .npz is a document of ids.

    With `skip_errors`, a file that can't be read yields a batch with an `error`. Otherwise, such a
    file raises UnreadableFileError.
    """
    options = CorpusOptions(field=field, split_long_documents=tokenizer.splits_before_whitespace)
    first_file, first_batch = start
    for index in range(first_file, len(files)):
        try:
            parts: Iterable[Part] = read_parts([files[index]], options)
            if files[index].suffix == ".npz":
                parts = _read_npz(files[index], tokenizer.vocab_size)
            batches = _batch_parts(index, parts)
            yield from islice(batches, first_batch if index == first_file else 0, None)
        except UnreadableFileError as error:
            if not skip_errors:
                raise
            yield Batch(index, [], True, error)


def _batch_parts(file: int, parts: Iterable[Part]) -> Iterator[Batch]:
    pending: list[Part] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += len(part[0])
        if size >= _BATCH_SIZE:
            yield Batch(file, pending, False)
            pending, size = [], 0
    yield Batch(file, pending, True)


def _read_npz(file: Path, vocab_size: int) -> Iterator[Part]:
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                _check_ids(array, vocab_size, f"{file}, {name}")
                yield array, True
    except UnreadableFileError:
        raise
    except _NPZ_ERRORS as error:
        raise UnreadableFileError(f"cannot read {file} as .npz: {error}") from error


def _check_ids(array: Any, vocab_size: int, source: str) -> None:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UnreadableFileError(
            f"{source}: expected token ids, found {array.dtype} {array.shape}"
        )
    if len(array) and not 0 <= array.min() <= array.max() < vocab_size:
        wrong = array.min() if array.min() < 0 else array.max()
        raise UnreadableFileError(
            f"{source}: the vocabulary has no id {wrong}; choose the model of the ids"
        )


def encode_batch(batch: Batch, tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    """Encode a batch; return the token ids, and PART_DTYPE records of the documents' lengths."""
    ids, records = bytearray(), []
    end = np.array([tokenizer.eos_token_id], tokenizer.encode_to_numpy("").dtype)
    for content, ends_document in batch.parts:
        if isinstance(content, str):
            encoded = tokenizer.encode_to_numpy(content, disallowed_special=())
            n_characters, is_array = len(content), False
        else:
            encoded = content.astype(end.dtype)
            n_characters, is_array = 0, True
        ids += encoded.tobytes()
        ids += end.tobytes() * ends_document
        records.append((len(encoded) + ends_document, n_characters, ends_document, is_array))
    return bytes(ids), np.array(records, PART_DTYPE).tobytes()
