"""Text ↔ ids: GPT-2's byte-level byte-pair encoding (Radford et al. 2019, section 2.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

import regex

from gpt2np.errors import InvalidArgumentError, TokenizerError
from gpt2np.tokenizer.decoder import StreamingDecoder
from gpt2np.tokenizer.formats import FILE_NAMES, Vocabulary, read_gpt2_vocabulary
from gpt2np.tokenizer.merge import merge_pairs
from gpt2np.tokenizer.split import split

END_OF_TEXT = "<|endoftext|>"

_CACHED_PIECE_BYTES = 64  # longer pieces are rare, and remembering them would not be bounded
_CACHED_PIECES = 1 << 16


class Tokenizer:
    """Encodes text to ids and decodes ids to text; ids equal those of tiktoken and `tokenizers`.

        >>> tokenizer = Tokenizer.from_folder("path/to/gpt2")
        >>> tokenizer.encode("GPT2 was created by OpenAI")
        [38, 11571, 17, 373, 2727, 416, 4946, 20185]

    Attributes:
        special_tokens: text of a special token → its id.
        vocab_size: the number of ids, that is the highest id plus one.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._merges = vocabulary.merges
        self._byte_ids = vocabulary.byte_ids
        self._ids_of_piece: dict[str, list[int]] = {}
        self.special_tokens = dict(vocabulary.special)
        self.vocab_size = max(vocabulary.tokens) + 1

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read `vocab.json` + `merges.txt`, or OpenAI's `encoder.json` + `vocab.bpe`, of a folder.

        Raises:
            TokenizerError: the files are missing, damaged, or don't fit each other.
        """
        folder = Path(folder)
        for vocab, merges in FILE_NAMES:
            if (folder / vocab).exists() and (folder / merges).exists():
                return cls(read_gpt2_vocabulary(folder / vocab, folder / merges))
        names = " or ".join(f"{vocab} and {merges}" for vocab, merges in FILE_NAMES)
        raise TokenizerError(f"{folder} holds no vocabulary: expected {names}")

    @property
    def end_of_text(self) -> int | None:
        """The id of `<|endoftext|>`, None in a vocabulary without it."""
        return self.special_tokens.get(END_OF_TEXT)

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | Collection[str] = (),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """The ids of `text`.

        What looks like a special token in a text may come from anybody, so by default it is an
        error (tiktoken's policy):

            encode("<|endoftext|>")                                → InvalidArgumentError
            encode("<|endoftext|>", disallowed_special=())         → [27, 91, 437, …], plain text
            encode("<|endoftext|>", allowed_special="all")         → [50256], the special token
            encode("<|endoftext|>", allowed_special={"<|pad|>"})   → InvalidArgumentError

        Lone surrogates, which UTF-8 can't express, become U+FFFD as in tiktoken.

        Raises:
            InvalidArgumentError: `text` holds a special token that is disallowed, and not allowed.
        """
        allowed = self._special(allowed_special)
        forbidden = self._special(disallowed_special) - allowed
        if found := _find_first(forbidden, text):
            raise InvalidArgumentError(
                f"the text holds the special token {found}; pass allowed_special={{{found!r}}} to "
                "encode it as that token, or disallowed_special=() to encode it as plain text"
            )
        ids: list[int] = []
        start = 0
        if allowed:
            for match in _any_of(allowed).finditer(text):
                ids += self._encode_plain(text[start : match.start()])
                ids.append(self.special_tokens[match.group()])
                start = match.end()
        return ids + self._encode_plain(text[start:])

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text of `ids`; what is not valid UTF-8 is treated as `bytes.decode` does.

        Raises:
            InvalidArgumentError: an id that the vocabulary doesn't have.
            UnicodeDecodeError: with errors="strict", bytes that are not UTF-8.
        """
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; InvalidArgumentError for one that is not in the vocabulary."""
        try:
            return b"".join([self._tokens[number] for number in ids])
        except KeyError as error:
            raise InvalidArgumentError(
                f"id {error.args[0]} is not in the vocabulary of {len(self._tokens)} tokens"
            ) from error

    def streaming_decoder(self) -> StreamingDecoder:
        """A decoder that takes one id after another."""
        return StreamingDecoder(self._tokens)

    def _special(self, choice: Literal["all"] | Collection[str]) -> set[str]:
        if choice == "all":
            return set(self.special_tokens)
        if unknown := set(choice) - set(self.special_tokens):
            raise InvalidArgumentError(
                f"{sorted(unknown)[0]!r} is not a special token of this vocabulary; it has "
                f"{', '.join(self.special_tokens) or 'none'}"
            )
        return set(choice)

    def _encode_plain(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        known = self._ids_of_piece
        for piece in split(text):
            of_piece = known.get(piece)
            ids += self._encode_piece(piece) if of_piece is None else of_piece
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode()
        ids = merge_pairs([self._byte_ids[byte] for byte in data], self._merges)
        if len(data) <= _CACHED_PIECE_BYTES:
            if len(self._ids_of_piece) >= _CACHED_PIECES:
                self._ids_of_piece.clear()
            self._ids_of_piece[piece] = ids
        return ids


def _any_of(special: Iterable[str]) -> regex.Pattern[str]:
    longest_first = sorted(special, key=len, reverse=True)
    return regex.compile("|".join(regex.escape(token) for token in longest_first))


def _find_first(special: set[str], text: str) -> str | None:
    match = _any_of(special).search(text) if special else None
    return match.group() if match else None
