"""Vocabulary files: `vocab.json` + `merges.txt`, or `encoder.json` + `vocab.bpe`."""

from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import TokenizerError
from gpt2np.json_file import read_json_object
from gpt2np.tokenizer.alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE, to_bytes
from gpt2np.tokenizer.merge import Merges

FILE_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""The names under which the two files are found in a model's folder, the first that exist."""

_PLAIN_SPECIAL_TOKENS = 16  # special tokens without brackets that no file should have more of


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer knows.

    Attributes:
        tokens: id → the token's bytes; for a special token its text in UTF-8.
        merges: see `gpt2np.tokenizer.merge.Merges`.
        byte_ids: for each of the 256 bytes the id of the token that is this byte alone.
        special: text of a special token → its id.
    """

    tokens: dict[int, bytes]
    merges: Merges
    byte_ids: tuple[int, ...]
    special: dict[str, int]


def read_gpt2_vocabulary(vocab_file: Path, merges_file: Path) -> Vocabulary:
    """Read the vocabulary (JSON: token → id) and the merges (a text line each, by rank).

    Tokens that are neither a single byte nor made by a merge can't come out of a text: these are
    the special tokens, such as `<|endoftext|>`.

    Raises:
        TokenizerError: a file can't be read or parsed, or the two don't fit each other.
    """
    ids = _read_vocab(vocab_file)
    missing = [character for character in BYTE_OF_CHARACTER if character not in ids]
    if missing:
        raise TokenizerError(
            f"{vocab_file} is not a byte-level vocabulary: {len(missing)} of the 256 single-byte "
            f"tokens are missing, {missing[0]!r} among them"
        )
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    merged_tokens = set(BYTE_OF_CHARACTER)
    for rank, (left, right) in enumerate(_read_merges(merges_file)):
        for token in (left, right, left + right):
            if token not in ids:
                raise TokenizerError(
                    f"{merges_file} merges {left!r} and {right!r}, but {vocab_file} has no token "
                    f"{token!r}; the two files must come from the same model"
                )
        merges.setdefault((ids[left], ids[right]), (rank, ids[left + right]))
        merged_tokens.add(left + right)
    special = {token: number for token, number in ids.items() if token not in merged_tokens}
    plain = [token for token in special if token[0] not in "<["]
    if len(plain) > _PLAIN_SPECIAL_TOKENS:
        raise TokenizerError(
            f"{merges_file} looks cut off: no merge makes {len(plain)} of the tokens in "
            f"{vocab_file}, {plain[0]!r} among them"
        )
    tokens = {ids[token]: _bytes_of(token, merges_file) for token in merged_tokens}
    tokens |= {number: token.encode() for token, number in special.items()}
    byte_ids = tuple(ids[CHARACTER_OF_BYTE[byte]] for byte in range(256))
    return Vocabulary(tokens, merges, byte_ids, special)


def _bytes_of(token: str, merges_file: Path) -> bytes:
    try:
        return to_bytes(token)
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{merges_file}: {token!r} is not in GPT-2's alphabet") from error


def _read_vocab(path: Path) -> dict[str, int]:
    content = read_json_object(path, TokenizerError)
    if not all(type(number) is int and number >= 0 for number in content.values()):
        raise TokenizerError(f"{path} is damaged: an id must be a whole number, at least 0")
    if len(set(content.values())) != len(content):
        raise TokenizerError(f"{path} gives the same id to two tokens")
    if "" in content or any("\ud800" <= char <= "\udfff" for token in content for char in token):
        raise TokenizerError(f"{path} is damaged: a token is empty or no Unicode text")
    return content


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TokenizerError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: not UTF-8 at byte {error.start}") from error
    merges = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise TokenizerError(f"{path}, line {number}: expected two tokens, found {line!r}")
        merges.append((left, right))
    return merges
