"""Reading of a corpus in batches, and encoding of a batch to bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.corpus import CorpusOptions, UnreadableFileError, read_parts

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


class Encoder(Protocol):
    """The methods and properties of `gpt2np.Tokenizer` that encoding a corpus needs."""

    vocab_size: int

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def splits_before_whitespace(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...

    def encode_to_numpy(
        self, text: str, *, disallowed_special: Collection[str] = ...
    ) -> NDArray[np.uint16 | np.uint32]: ...


class Part(NamedTuple):
    """A document, or a part of a long document, as text or token ids."""

    content: str | NDArray[np.integer[Any]]  # text, or the token ids of an array in an .npz file
    ends_document: bool  # whether this is the last part of its document


class Batch(NamedTuple):
    """Consecutive documents of a file, or parts of documents, which are encoded together."""

    file: int  # index of the file
    parts: list[Part]  # documents and parts of documents
    ends_file: bool  # whether this is the last batch of the file
    error: UnreadableFileError | None = None  # reason to skip the file, if any

    @property
    def nbytes(self) -> int:
        """Total size of the parts in bytes; texts are counted in UTF-8."""
        contents = (part.content for part in self.parts)
        return sum(
            len(content.encode()) if isinstance(content, str) else content.nbytes
            for content in contents
        )


def read_batches(
    files: Sequence[Path],
    encoder: Encoder,
    *,
    field: str = "text",
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Batch]:
    """Yield the batches of `files` from `start` on: (file index, batch index within the file).

    Batches are the same in every call. Files are text or .jsonl, which may be compressed (.gz), or
    .npz; each array of an .npz is a document of token ids.

    With `skip_errors`, a file that can't be read yields a batch with an `error`. Otherwise, such a
    file raises UnreadableFileError.
    """
    options = CorpusOptions(field=field, split_long_documents=encoder.splits_before_whitespace)
    first_file, first_batch = start
    for index in range(first_file, len(files)):
        try:
            if files[index].suffix == ".npz":
                parts = _read_npz(files[index], encoder.vocab_size)
            else:
                parts = (Part(*part) for part in read_parts([files[index]], options))
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
        size += len(part.content)
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
                yield Part(array, True)
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


@dataclass(frozen=True)
class BatchEncoder:
    """Encodes a batch to two byte strings: token ids, and a PART_DTYPE record for each part."""

    encoder: Encoder

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.uint32]:
        """Type of the token ids."""
        return self.encoder.encode_to_numpy("").dtype

    def __call__(self, batch: Batch) -> tuple[bytes, bytes]:
        ids, records = bytearray(), []
        end = np.array([self.encoder.eos_token_id], self.dtype).tobytes()
        for content, ends_document in batch.parts:
            if isinstance(content, str):
                encoded = self.encoder.encode_to_numpy(content, disallowed_special=())
                n_characters, is_array = len(content), False
            else:
                encoded = content.astype(self.dtype)
                n_characters, is_array = 0, True
            ids += encoded.tobytes()
            ids += end * ends_document
            records.append((len(encoded) + ends_document, n_characters, ends_document, is_array))
        return bytes(ids), np.array(records, PART_DTYPE).tobytes()
