"""Data of a tokenizer: tokens, merges, added tokens, normalization settings, the byte alphabet.

GPT-2's vocabulary files are text, so they can't hold raw bytes. Instead, they write each byte as a
printable character of the byte alphabet (`bytes_to_unicode` in gpt-2/src/encoder.py). A byte that
is a printable Latin-1 character is written as that character. The other 68 bytes are written as
U+0100 and the characters after U+0100: a space is "Ġ", and a newline is "Ċ".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from zlib import crc32

from gpt2np.data import END_OF_TEXT as END_OF_TEXT
from gpt2np.data.text import is_unicode_text
from gpt2np.errors import InvalidArgumentError, TokenizerError
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN

SPACE_PLACEHOLDER = "\uffff"
"""Stands for a space in tokens that are not byte-level; Unicode never assigns U+FFFF."""

_N_GPT2_MERGES = 50_000
_GPT2_MERGES_CRC32 = 0x49F9CBC7  # of the merges, one a line, in order of rank

_NO_TOKEN = "\ud800"  # stands for U+FFFF in text, as no token contains a lone surrogate

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + n) for n, byte in enumerate(_UNPRINTABLE)
}
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}

_OUTSIDE = "\uffff"  # not in Latin-1, so encoding a character outside the alphabet fails
_TO_LATIN_1: dict[int, int | str] = dict.fromkeys(range(256), _OUTSIDE) | {
    ord(char): byte for char, byte in CHAR_TO_BYTE.items()
}


def bytes_to_chars(data: bytes) -> str:
    """Spell bytes in the byte alphabet: b" hi" → "Ġhi"."""
    return data.decode("latin-1").translate(BYTE_TO_CHAR)


def chars_to_bytes(characters: str) -> bytes:
    """Return the bytes that `characters` of the byte alphabet spell: "Ġhi" → b" hi".

    Raises UnicodeEncodeError if a character is not in the alphabet.
    """
    return characters.translate(_TO_LATIN_1).encode("latin-1")


def token_bytes(ids: Iterable[int], table: Mapping[int, bytes]) -> list[bytes]:
    """Look up the bytes of each token id in `table`; a missing id, such as 123, gives b"[123]"."""
    return [table.get(token_id, b"[%d]" % token_id) for token_id in ids]


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched as a whole in the text, before byte-pair encoding."""

    content: str
    id: int
    special: bool = True  # a control token, matched only if the caller of `encode` allows it
    single_word: bool = False  # ignore matches within a word
    normalized: bool = False  # match in normalized text instead of the original


@dataclass(frozen=True)
class Vocabulary:
    """Content of a vocabulary, independent of the file format.

    Attributes:
        ids: token → id; added tokens are included only if merging can produce them. A byte-level
            vocabulary spells tokens in the byte alphabet ("Ġthe"). Any other vocabulary spells
            tokens in plain characters, with SPACE_PLACEHOLDER for a space.
        ranks: "left right" → rank of the merge: see `gpt2np.tokenizer.bpe`.
        added_tokens: tokens that are matched as a whole, including special tokens.
        pattern: one of `pre_tokenizer.PATTERNS`. Without a pattern, the whole text is one piece.
        byte_level: whether tokens consist of bytes instead of characters.
        nfc: whether to normalize text to Unicode form NFC.
        unk_token: token for a character that has no token; None if `byte_level`.
        special_tokens_map: key in Hugging Face's files ("eos_token", "pad_token", …) → text of an
            added token. Encoding doesn't depend on this map, so `==` ignores it.
    """

    ids: dict[str, int]
    ranks: dict[str, int]
    added_tokens: tuple[AddedToken, ...] = ()
    pattern: str | None = GPT2_PATTERN
    byte_level: bool = True
    nfc: bool = False
    unk_token: str | None = None
    special_tokens_map: dict[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def size(self) -> int:
        """The highest token id plus one."""
        return max([*self.ids.values(), *(token.id for token in self.added_tokens)], default=-1) + 1

    @cached_property
    def text_vocab_size(self) -> int:
        """The highest id of a token that is not special, plus one.

        Fine-tuned models often lack the embedding of a special token.
        """
        plain = (token.id for token in self.added_tokens if not token.special)
        return max([*self.ids.values(), *plain], default=-1) + 1

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """Bytes of each token, by id. An added token's bytes are its text in UTF-8."""
        tokens = list(self.ids)
        if self.byte_level:
            data = _decode_spelled_tokens(tokens)
        else:
            data = [token.replace(SPACE_PLACEHOLDER, " ").encode() for token in tokens]
        table = dict(zip(self.ids.values(), data, strict=True))
        for token in self.added_tokens:
            table.setdefault(token.id, token.content.encode())
        return table

    @cached_property
    def max_token_characters(self) -> int:
        """Maximum number of a text's characters that one token can cover."""
        longest = max(map(len, self.token_bytes.values()), default=1)
        # NFC replaces 4 characters by one of 3 bytes, at most.
        return max(1, longest) * (2 if self.nfc else 1)

    @cached_property
    def can_ignore_merges(self) -> bool:
        """Whether a piece that equals a token is known to become this token, with GPT-2's merges.

        Tests check that merging the text of any of GPT-2's tokens gives that token.
        """
        if not self.byte_level or not len(self.ranks) == len(self.ids) - 256 == _N_GPT2_MERGES:
            return False
        in_order = [*self.ranks.values()] == [*range(_N_GPT2_MERGES)]
        merges = "\n".join(self.ranks).encode("utf-8", "replace")
        return in_order and crc32(merges) == _GPT2_MERGES_CRC32

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def spell(self, piece: str) -> str:
        """Spell a text as the vocabulary spells its tokens, such as " the" as "Ġthe"."""
        if not self.byte_level:
            return piece.replace(SPACE_PLACEHOLDER, _NO_TOKEN).replace(" ", SPACE_PLACEHOLDER)
        if piece.isascii() and piece.isprintable():
            return piece.replace(" ", BYTE_TO_CHAR[0x20])
        return bytes_to_chars(piece.encode())

    def id_and_nbytes(self, token: str) -> tuple[int, int]:
        """Return the id of `token` and the length of its text in bytes.

        `token` is spelled as in `ids`. A character without a token gets the id of `unk_token`.
        Raises InvalidArgumentError for such a character if there is no `unk_token`.
        """
        if self.byte_level:
            return self.ids[token], len(token)
        token_id = self.ids.get(token, self._unk_token_id)
        text = token.replace(SPACE_PLACEHOLDER, " ").replace(_NO_TOKEN, SPACE_PLACEHOLDER)
        if token_id is None:
            raise InvalidArgumentError(
                f"the character {text!r} is not in the vocabulary, which has no token for unknown "
                "characters"
            )
        return token_id, len(text.encode("utf-8", "surrogatepass"))

    @cached_property
    def _unk_token_id(self) -> int | None:
        added = {token.content: token.id for token in self.added_tokens}
        return (self.ids | added).get(self.unk_token) if self.unk_token is not None else None


def _decode_spelled_tokens(tokens: list[str]) -> list[bytes]:
    try:
        data = chars_to_bytes("".join(tokens))  # all at once: far faster than one by one
    except UnicodeEncodeError:
        # Some tokens, such as added tokens, have characters outside the byte alphabet. Merging
        # never makes such a token. Its bytes are its text in UTF-8.
        in_alphabet = CHAR_TO_BYTE.keys()
        return [
            chars_to_bytes(token) if in_alphabet >= set(token) else token.encode()
            for token in tokens
        ]
    stops = list(accumulate(map(len, tokens)))
    return list(map(data.__getitem__, map(slice, [0, *stops], stops)))


def check_vocabulary(ids: dict[str, int], file: Path) -> None:
    """Raise a TokenizerError that names `file` if a token is not text, or an id is not valid."""
    if set(map(type, ids.values())) - {int} or min(ids.values(), default=0) < 0:
        raise TokenizerError(f"{file} is damaged: an id must be a whole number, at least 0")
    if len(set(ids.values())) != len(ids):
        [(shared, _)] = Counter(ids.values()).most_common(1)
        raise TokenizerError(f"{file} gives the same id to two tokens, {shared}")
    if max(ids.values(), default=0) >= 1 << 32:
        raise TokenizerError(f"{file} is damaged: the id {max(ids.values())} exceeds 32 bits")
    if "" in ids or not is_unicode_text("".join(ids)):
        raise TokenizerError(f"{file} is damaged: a token is empty or not Unicode text")


def check_bytes(ids: dict[str, int], file: Path) -> None:
    """Raise a TokenizerError that names `file` if `ids` lacks a token for one of the 256 bytes."""
    if missing := sorted(CHAR_TO_BYTE.keys() - ids.keys()):
        raise TokenizerError(
            f"{file} is not a byte-level vocabulary: {len(missing)} of the 256 single-byte tokens "
            f"are missing, such as {missing[0]!r}"
        )
