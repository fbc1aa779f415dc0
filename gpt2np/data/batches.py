"""The parts of a corpus in batches, and the ids of a batch as bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.corpus import CorpusOptions, UnreadableFileError, read_blocks
from gpt2np.tokenizer.chunks import BEFORE_LINES
from gpt2np.tokenizer.tokenizer import Tokenizer
from gpt2np.tokenizer.vocabulary import Vocabulary

PART_DTYPE = np.dtype([("ids", "<u4"), ("characters", "<u4"), ("ends", "?"), ("alone", "?")])
"""What is kept of each part, to divide an .npz into chunks: the number of its ids (with that of
<|endoftext|> where the document ends) and characters, and whether it is a chunk by itself."""

_BATCH = 1 << 20  # characters, or ids
_NPZ_ERRORS = (  # what zipfile and NumPy raise on a file that is damaged, or no .npz
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


class Part(NamedTuple):
    """A document or, of a long one, a block.

    Attributes:
        content: its text, or the ids of a chunk of an .npz file.
        ends: whether the document ends with it.
    """

    content: str | NDArray[np.integer[Any]]
    ends: bool


class Batch(NamedTuple):
    """What is encoded at once.

    Attributes:
        file: the number of the file that it is from.
        parts: consecutive parts of that file.
        ends: whether the file ends with it.
        error: what is wrong with the file, so that it is to be left out.
    """

    file: int
    parts: list[Part]
    ends: bool
    error: UnreadableFileError | None = None

    @property
    def bytes(self) -> int:
        """The bytes of its text in UTF-8, and of its ids."""
        return sum(_bytes(part.content) for part in self.parts)


def _bytes(content: str | NDArray[np.integer[Any]]) -> int:
    if not isinstance(content, str):
        return content.nbytes
    return len(content) if content.isascii() else len(content.encode())


def read_batches(
    files: Sequence[Path],
    vocabulary: Vocabulary,
    *,
    field: str = "text",
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Batch]:
    """The batches of `files`, the same in every run. Each file ends with a batch that `ends`.

    Args:
        files: text, .jsonl, either also as .gz, or .npz, whose arrays are documents of ids.
        vocabulary: where its split pattern allows it, long documents come in blocks.
        field: the field of a .jsonl line that holds the document.
        skip_errors: give a batch with an `error` for a file that can't be read, then go on.
        start: begin with this batch of this file.

    Raises:
        UnreadableFileError: a file can't be read.
    """
    options = CorpusOptions(field=field, in_blocks=_cuts_at_spaces(vocabulary))
    first, done = start
    for number in range(first, len(files)):
        try:
            batches = _batches(number, _parts(files[number], options, vocabulary.size))
            yield from islice(batches, done if number == first else 0, None)
        except UnreadableFileError as error:
            if not skip_errors:
                raise
            yield Batch(number, [], True, error)


def _cuts_at_spaces(vocabulary: Vocabulary) -> bool:
    """Whether blocks of a document have the ids of the document."""
    return (
        len(vocabulary.patterns) == 1
        and vocabulary.patterns[0] in BEFORE_LINES
        and not vocabulary.prefix_space
        and all(token.special for token in vocabulary.added)
    )


def _batches(file: int, parts: Iterable[Part]) -> Iterator[Batch]:
    waiting: list[Part] = []
    length = 0
    for part in parts:
        waiting.append(part)
        length += len(part.content)
        if length >= _BATCH:
            yield Batch(file, waiting, False)
            waiting, length = [], 0
    yield Batch(file, waiting, True)


def _parts(file: Path, options: CorpusOptions, vocabulary_size: int) -> Iterator[Part]:
    if file.suffix == ".npz":
        return _chunks_of_npz(file, vocabulary_size)
    return (Part(block.text, block.ends) for block in read_blocks([file], options))


def _chunks_of_npz(file: Path, vocabulary_size: int) -> Iterator[Part]:
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                _check_ids(array, vocabulary_size, f"{file}, {name}")
                yield Part(array, True)
    except UnreadableFileError:
        raise
    except _NPZ_ERRORS as error:
        raise UnreadableFileError(f"can't read {file} as .npz: {error}") from error


def _check_ids(array: Any, vocabulary_size: int, place: str) -> None:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UnreadableFileError(f"{place}: expected ids, found {array.dtype} {array.shape}")
    if len(array) and not 0 <= array.min() <= array.max() < vocabulary_size:
        wrong = array.min() if array.min() < 0 else array.max()
        raise UnreadableFileError(
            f"{place}: the vocabulary has no id {wrong}; choose its own model"
        )


@dataclass(frozen=True)
class BatchEncoder:
    """Batch → its ids, and a PART_DTYPE for each part, as bytes.

    Attributes:
        tokenizer: encodes; it has `<|endoftext|>`.
    """

    tokenizer: Tokenizer

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.uint32]:
        """The type of the ids."""
        return self.tokenizer.encode_to_numpy("").dtype

    def __call__(self, batch: Batch) -> tuple[bytes, bytes]:
        ids, rows = bytearray(), []
        end = np.array([self.tokenizer.end_of_text], self.dtype).tobytes()
        for content, ends in batch.parts:
            alone = not isinstance(content, str)
            encoded = self._ids(content)
            ids += encoded.tobytes()
            ids += end * ends
            rows.append((len(encoded) + ends, 0 if alone else len(content), ends, alone))
        return bytes(ids), np.array(rows, PART_DTYPE).tobytes()

    def _ids(self, content: str | NDArray[np.integer[Any]]) -> NDArray[np.uint16 | np.uint32]:
        if isinstance(content, str):
            return self.tokenizer.encode_to_numpy(content, disallowed_special=())
        return content.astype(self.dtype)
