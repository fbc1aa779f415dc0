"""Documents of a corpus to encode, and encoding of a batch of documents to bytes."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.corpus import UnreadableFileError, kind_of, read_corpus_texts
from gpt2np.data.corpus_job import DocumentBatch
from gpt2np.data.options import Special
from gpt2np.data.resumable import Results
from gpt2np.errors import errors_at
from gpt2np.tokenizer.normalizer import allowed_special, check_special
from gpt2np.tokenizer.tokenizer import Tokenizer

LENGTH_DTYPE = np.dtype([("ids", "<u4"), ("characters", "<u4"), ("is_array", "?")])
"""Record of a document: number of token ids with the <|endoftext|> at its end, number of
characters, and whether the document is an array of an .npz input file. The records determine the
arrays of an .npz output file."""

BATCH_SIZE = 1 << 20  # in characters or, for arrays, token ids
_MAX_EXPANSION = 200  # of a compressed member of an .npz file, unless it is small
_MAX_UNCHECKED_BYTES = 64 << 20
_find_word_end = re.compile(r"\S(?=[ \n])").search
_NPZ_ERRORS = (  # raised by zipfile and NumPy for a file that is damaged or not an .npz
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


Content = str | NDArray[np.integer[Any]]
"""A document: text, or the token ids of an array in an .npz file."""


def read_contents(file: Path, vocab_size: int, field: str) -> Iterator[tuple[Content, int, int]]:
    """Yield the documents of a file with their lengths and sizes in bytes.

    Raises UnreadableFileError if the file can't be read.
    """
    if kind_of(file) == ".npz":
        yield from ((array, len(array), array.nbytes) for array in _read_npz(file, vocab_size))
    else:
        for text in read_corpus_texts([file], field):
            yield text, len(text), len(text.encode())


def _read_npz(file: Path, vocab_size: int) -> Iterator[NDArray[np.integer[Any]]]:
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():  # zipfile reads at most `file_size` bytes of a member
                most = max(_MAX_EXPANSION * info.compress_size, _MAX_UNCHECKED_BYTES)
                if info.file_size > most:
                    raise UnreadableFileError(
                        f"{file}, {info.filename}: {info.compress_size:,} compressed bytes expand "
                        f"to {info.file_size:,}, more than {_MAX_EXPANSION} times as many"
                    )
                with archive.open(info) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                _check_ids(array, vocab_size, f"{file}, {info.filename}")
                yield array
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


def encode_batch(
    tokenizer: Tokenizer, special: Special, names: Sequence[str], batch: DocumentBatch[Content]
) -> Results:
    """Encode a batch to the token ids, and to LENGTH_DTYPE records of the documents.

    Raises InvalidArgumentError, which names the file, if `special` is "error" and a text has a
    special token.
    """
    ids, records = bytearray(), []
    end = np.array([tokenizer.eos_token_id], tokenizer.encode_to_numpy("").dtype)
    for content in batch.items:
        if isinstance(content, str):
            with errors_at(f"{names[batch.file]}: "):
                check_special(content, tokenizer.special_tokens, special)
            encoded, n_characters = _encode(content, tokenizer, special), len(content)
        else:
            encoded, n_characters = content.astype(end.dtype), 0
        ids += encoded.tobytes() + end.tobytes()
        records.append((len(encoded) + 1, n_characters, not isinstance(content, str)))
    contents = bytes(ids), np.array(records, LENGTH_DTYPE).tobytes()
    problems = [batch.error] if batch.error else []
    return Results(contents, problems, len(ids) // end.itemsize)


def _encode(text: str, tokenizer: Tokenizer, special: Special) -> NDArray[Any]:
    """Encode a text, a long one in pieces: lists of ids take many times the memory of an array."""
    allowed = allowed_special(special)
    pieces = _cut(text) if tokenizer.splits_before_whitespace and not allowed else [text]
    return np.concatenate(
        [
            tokenizer.encode_to_numpy(piece, allowed_special=allowed, disallowed_special=())
            for piece in pieces
        ]
    )


def _cut(text: str) -> Iterator[str]:
    """Cut a text between visible characters and white space, where pre-tokenizers cut, too."""
    start = 0
    while end := _find_word_end(text, start + BATCH_SIZE):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:]
