"""What a tokenizer knows: tokens, merges, added tokens, and how a text is prepared."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from gpt2np.data import END_OF_TEXT as END_OF_TEXT
from gpt2np.errors import InvalidArgumentError, TokenizerError
from gpt2np.tokenizer.added import AddedToken
from gpt2np.tokenizer.alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE, to_bytes, to_characters
from gpt2np.tokenizer.split import GPT2_PATTERN

SPACE = "\uffff"
"""Stands for a space in tokens of plain characters; Unicode promises that it is no character."""

_NO_TOKEN = "\ud800"  # for that non-character itself; no vocabulary can have a lone surrogate


@dataclass(frozen=True)
class Vocabulary:
    """The content of a vocabulary, whatever the format of its file.

    Attributes:
        ids: token → id, without the added tokens. A token of a byte-level vocabulary is spelled in
            the byte alphabet ("Ġthe"), of another in plain characters, with SPACE for a space.
        ranks: "left right" → rank, see `gpt2np.tokenizer.merge`.
        added: tokens that are found in a text before it is split, special ones among them.
        patterns: split patterns, applied one after another; without any, merges may go anywhere.
        byte_level: whether tokens are made of bytes, or of characters.
        nfc: whether a text is first brought to Unicode's normalization form C.
        prefix_space: whether a text that doesn't begin with a space is given one.
        whole_pieces: whether a piece that is a token is this token, whatever the merges say
            (`ignore_merges` in tokenizer.json; tiktoken's way).
        unknown: the token for a character that has none; only without `byte_level`.
        self_encoding: whether it is known that every token is what its own text is merged to. Then
            a piece that is a token needs no merging, and its id is the same.
        roles: what added tokens are for: key in Hugging Face's files ("eos_token", "pad_token", …)
            → text of the token. Ids don't depend on it, so neither does equality.
    """

    ids: dict[str, int]
    ranks: dict[str, int]
    added: tuple[AddedToken, ...] = ()
    patterns: tuple[str, ...] = (GPT2_PATTERN,)
    byte_level: bool = True
    nfc: bool = False
    prefix_space: bool = False
    whole_pieces: bool = False
    unknown: str | None = None
    self_encoding: bool = field(default=False, init=False, compare=False)
    roles: dict[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def size(self) -> int:
        """The number of ids, that is the highest id plus one."""
        return max([*self.ids.values(), *(token.id for token in self.added)], default=-1) + 1

    @cached_property
    def ids_of_texts(self) -> int:
        """The highest id plus one of the tokens that plain text can become.

        Fine-tunes often add a special token, such as one for padding, that their model has no row
        for and never sees.
        """
        found = (token.id for token in self.added if not token.special)
        return max([*self.ids.values(), *found], default=-1) + 1

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """id → the token's bytes; those of an added token are its text in UTF-8."""
        tokens = list(self.ids)
        data = _spelled_bytes(tokens) if self.byte_level else _character_bytes(tokens)
        table = dict(zip(self.ids.values(), data, strict=True))
        for token in self.added:
            table.setdefault(token.id, token.content.encode())
        return table

    def as_self_encoding(self) -> Vocabulary:
        """This vocabulary, known to be self-encoding. `replace` doesn't keep that knowledge."""
        object.__setattr__(self, "self_encoding", True)
        return self

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def spell(self, piece: str) -> str:
        """`piece` in the vocabulary's characters: each is a token, before any merge."""
        if not self.byte_level:
            return piece.replace(SPACE, _NO_TOKEN).replace(" ", SPACE)
        if piece.isascii() and piece.isprintable():
            return piece.replace(" ", CHARACTER_OF_BYTE[0x20])
        return to_characters(piece.encode("utf-8", "surrogateescape"))

    def id_and_bytes(self, token: str) -> tuple[int, int]:
        """The id of a spelled token, or of the unknown one, and how many bytes of text it is.

        Raises:
            InvalidArgumentError: it is a character that has no token.
        """
        if self.byte_level:
            return self.ids[token], len(token)
        number = self.ids.get(token, self._unknown_id)
        text = token.replace(SPACE, " ").replace(_NO_TOKEN, SPACE)
        if number is None:
            raise InvalidArgumentError(
                f"the character {text!r} is not in the vocabulary, and neither is a token for "
                "unknown characters"
            )
        return number, len(text.encode("utf-8", "surrogatepass"))

    @cached_property
    def _unknown_id(self) -> int | None:
        added = {token.content: token.id for token in self.added}
        return (self.ids | added).get(self.unknown) if self.unknown is not None else None


def _spelled_bytes(tokens: list[str]) -> list[bytes]:
    try:
        data = to_bytes("".join(tokens))  # all at once: far faster than one by one
    except UnicodeEncodeError:
        return [_literal_or_spelled(token) for token in tokens]
    stops = list(accumulate(map(len, tokens)))
    return list(map(data.__getitem__, map(slice, [0, *stops], stops)))


def _literal_or_spelled(token: str) -> bytes:
    """A token outside the byte alphabet can't come out of a text; it stands for itself."""
    return to_bytes(token) if BYTE_OF_CHARACTER.keys() >= set(token) else token.encode()


def _character_bytes(tokens: list[str]) -> list[bytes]:
    return [token.replace(SPACE, " ").encode() for token in tokens]


def check_ids(ids: dict[str, int], file: Path) -> None:
    """Raises TokenizerError, naming `file`, unless each token is a text with an id of its own."""
    if set(map(type, ids.values())) - {int} or min(ids.values(), default=0) < 0:
        raise TokenizerError(f"{file} is damaged: an id must be a whole number, at least 0")
    if len(set(ids.values())) != len(ids):
        raise TokenizerError(f"{file} gives the same id to two tokens, {_shared_id(ids)}")
    if max(ids.values(), default=0) >= 1 << 32:
        raise TokenizerError(f"{file} is damaged: the id {max(ids.values())} is beyond 32 bits")
    if "" in ids:
        raise TokenizerError(f"{file} is damaged: a token is empty")
    if not is_text("".join(ids)):
        wrong = next(token for token in ids if not is_text(token))
        raise TokenizerError(f"{file} is damaged: the token {wrong!a} is no Unicode text")


def check_bytes(ids: dict[str, int], file: Path) -> None:
    """Raises TokenizerError, naming `file`, unless every byte is a token of `ids`."""
    missing = [character for character in BYTE_OF_CHARACTER if character not in ids]
    if missing:
        raise TokenizerError(
            f"{file} is not a byte-level vocabulary: {len(missing)} of the 256 single-byte tokens "
            f"are missing, {missing[0]!r} (byte 0x{BYTE_OF_CHARACTER[missing[0]]:02x}) among them"
        )


def _shared_id(ids: dict[str, int]) -> str:
    first: dict[int, str] = {}
    for token, number in ids.items():
        if number in first:
            return f"{first[number]!r} and {token!r} ({number})"
        first[number] = token
    return ""


def is_text(characters: str) -> bool:
    """Whether `characters` has no lone surrogate."""
    try:
        characters.encode()
    except UnicodeEncodeError:
        return False
    return True
