"""Read a corpus in batches, and encode a batch to bytes."""

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
"""Record of a part, from which the arrays of an .npz are formed: the number of token ids (with that
of <|endoftext|> at the end of a document), the number of characters, and two flags."""

_BATCH_SIZE = 1 << 20  # characters, or token ids
_NPZ_ERRORS = (  # what zipfile and NumPy raise for a file that is damaged or not an .npz
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


class Encoder(Protocol):
    """What encoding a corpus needs of a tokenizer.

    Attributes:
        vocab_size: number of ids.
        eos_token_id: id of <|endoftext|>, or None.
        splits_before_whitespace: whether a text may be cut before white space that follows a
            visible character, and encoded part by part.
        fingerprint: a hash that changes with the vocabulary.
    """

    vocab_size: int

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def splits_before_whitespace(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...

    def encode_to_numpy(
        self, text: str, *, disallowed_special: Collection[str] = ...
    ) -> NDArray[np.uint16 | np.uint32]:
        """Encode `text` to ids (N,); special tokens are plain text if none is disallowed."""


class Part(NamedTuple):
    """A document, or a part of a long document.

    Attributes:
        content: the text, or the token ids of an array in an .npz file.
        ends_document: whether this is the last part of its document.
    """

    content: str | NDArray[np.integer[Any]]
    ends_document: bool


class Batch(NamedTuple):
    """Consecutive parts of a file, encoded together."""

    file: int  # index of the file
    parts: list[Part]  # the parts
    ends_file: bool  # whether this is the last batch of the file
    error: UnreadableFileError | None = None  # why the file is to be skipped, or None

    @property
    def nbytes(self) -> int:
        """Size of the texts in UTF-8 and of the arrays, in bytes."""
        return sum(_nbytes(part.content) for part in self.parts)


def _nbytes(content: str | NDArray[np.integer[Any]]) -> int:
    if not isinstance(content, str):
        return content.nbytes
    return len(content) if content.isascii() else len(content.encode())


def read_batches(
    files: Sequence[Path],
    encoder: Encoder,
    *,
    field: str = "text",
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Batch]:
    """Yield the batches of `files`, the same in every run.

    Args:
        files: text or .jsonl files, also as .gz, or .npz files whose arrays are documents of ids.
        encoder: limits the ids of .npz files, and says whether long texts may be split.
        field: field of a .jsonl line that holds the document.
        skip_errors: for a file that can't be read, yield a batch with an `error` and go on.
        start: (file, batch) to begin with, both counted from 0.

    Raises UnreadableFileError if a file can't be read.
    """
    options = CorpusOptions(field=field, split_long_documents=encoder.splits_before_whitespace)
    first_file, first_batch = start
    for index in range(first_file, len(files)):
        try:
            batches = _batch_parts(index, _read_file(files[index], options, encoder.vocab_size))
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


def _read_file(file: Path, options: CorpusOptions, vocab_size: int) -> Iterator[Part]:
    if file.suffix == ".npz":
        return _read_npz(file, vocab_size)
    return (Part(part.text, part.ends_document) for part in read_parts([file], options))


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
        raise UnreadableFileError(f"can't read {file} as .npz: {error}") from error


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
    """Encodes a batch to bytes: the token ids, and a PART_DTYPE record for each part."""

    encoder: Encoder

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.uint32]:
        """Type of the token ids."""
        return self.encoder.encode_to_numpy("").dtype

    def __call__(self, batch: Batch) -> tuple[bytes, bytes]:
        ids, records = bytearray(), []
        end = np.array([self.encoder.eos_token_id], self.dtype).tobytes()
        for content, ends_document in batch.parts:
            is_array = not isinstance(content, str)
            encoded = self._encode(content)
            ids += encoded.tobytes()
            ids += end * ends_document
            n_characters = 0 if is_array else len(content)
            records.append((len(encoded) + ends_document, n_characters, ends_document, is_array))
        return bytes(ids), np.array(records, PART_DTYPE).tobytes()

    def _encode(self, content: str | NDArray[np.integer[Any]]) -> NDArray[np.uint16 | np.uint32]:
        if isinstance(content, str):
            return self.encoder.encode_to_numpy(content, disallowed_special=())
        return content.astype(self.dtype)
