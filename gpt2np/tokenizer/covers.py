"""Covers of a text: the token sequences with which a longer text can begin.

A text may end within a token: "The capit" goes on with the tokens "The", " capital" as well as with
"The", " cap", "ital". A cover of a text is a sequence of tokens that spells the text, or more than
the text; without its last token, it spells less. Every continuation of the text begins with a cover
(Hayase et al. 2025, arXiv 2506.14123, section 3).

Only canonical covers count: those with which the encoding of some text begins. A text of n bytes
has up to 2ⁿ covers, but a model has seen only the canonical ones, and there are few. In BPE, a
beginning of a canonical sequence is canonical, and so is a sequence whose pairs of neighbors are.
So the tokens of a cover before its last token are the encoding of the bytes that they spell. Merges
stay within a piece of the pre-tokenizer; `piece_beginnings` tells where the pieces can begin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.bpe import merge_pairs
from gpt2np.tokenizer.piece_beginnings import PieceBeginnings, decode, shape
from gpt2np.tokenizer.vocabulary import Vocabulary, bytes_to_chars


class Branch(NamedTuple):
    """The covers of a text that differ in the last token only.

    Attributes:
        ids: the token ids before the last one.
        last: (n,), the id of each cover's last token, in ascending order.
        n_covered: how many bytes of the last token belong to the text; at least 1.
        whole: the id in `last` whose token ends where the text ends; -1 if there is none.
    """

    ids: tuple[int, ...]
    last: NDArray[np.int64]
    n_covered: int
    whole: int


class _Tokens(NamedTuple):
    """The tokens that merging can produce, in the order of their bytes."""

    texts: list[bytes]
    ids: list[int]
    shapes: list[str]


class CoverFinder:
    """Finds the canonical covers of texts for one tokenizer. Threads can share a finder."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[..., list[int]]) -> None:
        """Prepare for a tokenizer, given by its vocabulary and its method `encode`.

        Raises InvalidArgumentError if the tokenizer changes texts before it encodes them.
        """
        changes = vocabulary.nfc or vocabulary.add_prefix_space or not vocabulary.byte_level
        if changes or not all(token.special for token in vocabulary.added_tokens):
            raise InvalidArgumentError(
                "{boundary} {boundary.value} needs a byte-level tokenizer that neither normalizes "
                "texts nor matches added tokens in them; omit it",
                boundary="text",
            )
        self._vocabulary, self._encode = vocabulary, encode
        self._pieces = PieceBeginnings(vocabulary.patterns)
        self._last_tokens = lru_cache(maxsize=256)(self._find_last_tokens)
        self._is_kept = lru_cache(maxsize=65_536)(self._find_is_kept)

    def find(self, text: bytes) -> list[Branch]:
        """Return the canonical covers of a text of at least one byte, by branch."""
        branches: dict[tuple[int, ...], Branch] = {}
        for closed, piece in self._pieces.splits(text):
            before = tuple(chain.from_iterable(map(self._encode_bytes, closed)))
            context = b"".join(closed[-1:])
            for cut in range(max(0, len(piece) - self._max_token_bytes), len(piece)):
                ids, last, whole = self._last_tokens(context, piece[:cut], piece[cut:])
                path = (*before, *ids)
                if path in branches:
                    last = np.union1d(last, branches[path].last)
                    whole = max(whole, branches[path].whole)
                if len(last):
                    branches[path] = Branch(path, last, len(piece) - cut, whole)
        return list(branches.values())

    def _find_last_tokens(
        self, before: bytes, head: bytes, tail: bytes
    ) -> tuple[tuple[int, ...], NDArray[np.int64], int]:
        """Return the ids of `head`, of the tokens from `tail` on that can follow, and of `tail`.

        `head` + `tail` is the beginning of a piece, and `before` the piece before it.
        """
        texts, ids, shapes = self._tokens
        start = bisect_left(texts, tail)
        stop = bisect_left(texts, tail + b"\xff" * self._max_token_bytes, start)
        if start == stop:
            return (), np.empty(0, np.int64), -1
        path = merge_pairs(bytes_to_chars(head), self._vocabulary.ranks)
        rest_after = self._pieces.continues(before, head, tail)
        last = [
            ids[i]
            for i in range(start, stop)
            if (rest := rest_after(texts[i], shapes[i])) is not None
            and self._is_kept(path[-1] if path else "", texts[i], rest)
        ]
        path_ids = tuple(self._vocabulary.ids[token] for token in path)
        whole = next((i for i in last[:1] if self._vocabulary.token_bytes[i] == tail), -1)
        return path_ids, np.array(sorted(last), np.int64), whole

    @cached_property
    def _tokens(self) -> _Tokens:
        added = {token.id for token in self._vocabulary.added_tokens}
        table = self._vocabulary.token_bytes.items()
        pairs = sorted((data, token_id) for token_id, data in table if token_id not in added)
        texts = [data for data, _ in pairs]
        return _Tokens(texts, [token_id for _, token_id in pairs], list(map(shape, texts)))

    @cached_property
    def _max_token_bytes(self) -> int:
        return max(map(len, self._tokens.texts))

    def _find_is_kept(self, left: str, text: bytes, rest: str) -> bool:
        """Return whether BPE keeps a token with the bytes `text` between a token and a text.

        `left` is the token before, if any, and `rest` is what must follow, if anything.
        """
        vocabulary, token = self._vocabulary, bytes_to_chars(text)
        if not (left or rest) and (vocabulary.self_encoding or vocabulary.ignore_merges):
            return True
        kept = [left, token] if left else [token]
        return merge_pairs(left + token + rest, vocabulary.ranks)[: len(kept)] == kept

    def _encode_bytes(self, text: bytes) -> list[int]:
        return self._encode(decode(text), disallowed_special=(), errors="surrogateescape")
