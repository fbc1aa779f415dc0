"""Encoding many texts in several processes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from gpt2np.tokenizer.vocabulary import Vocabulary

TYPE_CHECKING = False  # importing typing takes longer than all of this module
if TYPE_CHECKING:
    from typing import Any

    from gpt2np.tokenizer.tokenizer import Tokenizer

_CHUNKS_PER_PROCESS = 4  # so that a process that is done early takes some of the others' work
_tokenizer: Tokenizer | None = None  # a worker's own, which keeps what it learns


def encode_in_processes(
    vocabulary: Vocabulary, texts: Sequence[str], processes: int, options: Mapping[str, Any]
) -> Iterator[list[int]]:
    """The ids of each of `texts`, in order, computed by `processes` workers."""
    chunk = -(-len(texts) // (processes * _CHUNKS_PER_PROCESS)) or 1
    with ProcessPoolExecutor(processes, initializer=_start, initargs=(vocabulary,)) as pool:
        for packed in pool.map(partial(_encode, options=options), texts, chunksize=chunk):
            yield array("I", packed).tolist()


def _start(vocabulary: Vocabulary) -> None:
    from gpt2np.tokenizer.tokenizer import Tokenizer

    global _tokenizer
    _tokenizer = Tokenizer(vocabulary)


def _encode(text: str, options: Mapping[str, Any]) -> bytes:
    assert _tokenizer is not None
    return array("I", _tokenizer.encode(text, **options)).tobytes()
