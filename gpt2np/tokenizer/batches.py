"""Documents of a corpus to encode, and encoding of a batch of documents to bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.corpus import CorpusOptions, UnreadableFileError, read_parts
from gpt2np.data.corpus_job import DocumentBatch
from gpt2np.data.resumable import Results
from gpt2np.errors import InvalidArgumentError
from gpt2np.limits import check_expansion
from gpt2np.tokenizer.tokenizer import Tokenizer

PART_DTYPE = np.dtype(
    [("ids", "<u4"), ("characters", "<u4"), ("ends_document", "?"), ("is_array", "?")]
)
"""Record of a document or a part of it: number of token ids, number of characters, and two flags.

The ids include the <|endoftext|> at the end of a document. The flag `is_array` marks an array from
an .npz input file. The records determine the arrays of an .npz output file."""

BATCH_SIZE = 1 << 20  # in characters or, for arrays, token ids
_NPZ_ERRORS = (  # raised by zipfile and NumPy for a file that is damaged or not an .npz
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


Part = tuple[str | NDArray[np.integer[Any]], bool]
"""A document, or a part of a long document, and whether this is the last part of its document.

The content is text, or the token ids of an array in an .npz file."""


def read_parts_or_arrays(file: Path, tokenizer: Tokenizer, field: str = "text") -> Iterable[Part]:
    """Yield the documents of a file: of an .npz file, each array of token ids.

    Raises UnreadableFileError if the file can't be read.
    """
    if file.suffix == ".npz":
        return _read_npz(file, tokenizer.vocab_size)
    split_long_documents = tokenizer.splits_before_whitespace
    return read_parts([file], CorpusOptions(field=field, split_long_documents=split_long_documents))


def _read_npz(file: Path, vocab_size: int) -> Iterator[Part]:
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():  # zipfile reads at most `file_size` bytes of a member
                check_expansion(f"{file}, {info.filename}", info.compress_size, info.file_size)
                with archive.open(info) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                _check_ids(array, vocab_size, f"{file}, {info.filename}")
                yield array, True
    except UnreadableFileError:
        raise
    except InvalidArgumentError as error:
        raise UnreadableFileError(str(error)) from error
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


def encode_batch(batch: DocumentBatch[Part], tokenizer: Tokenizer) -> Results:
    """Encode a batch to the token ids, and to PART_DTYPE records of the documents' lengths."""
    ids, records = bytearray(), []
    end = np.array([tokenizer.eos_token_id], tokenizer.encode_to_numpy("").dtype)
    for content, ends_document in batch.items:
        if isinstance(content, str):
            encoded = tokenizer.encode_to_numpy(content, disallowed_special=())
            n_characters, is_array = len(content), False
        else:
            encoded = content.astype(end.dtype)
            n_characters, is_array = 0, True
        ids += encoded.tobytes()
        ids += end.tobytes() * ends_document
        records.append((len(encoded) + ends_document, n_characters, ends_document, is_array))
    contents = bytes(ids), np.array(records, PART_DTYPE).tobytes()
    problems = [batch.error] if batch.error else []
    return Results(contents, problems, len(ids) // end.itemsize)
