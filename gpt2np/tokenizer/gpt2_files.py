"""GPT-2's own vocabulary files: `vocab.json` + `merges.txt`, or `encoder.json` + `vocab.bpe`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path
from zlib import crc32

from gpt2np.data.files import LARGE_JSON_BYTES, atomic_write_text, check_is_file, read_json_object
from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.added import AddedToken
from gpt2np.tokenizer.alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE
from gpt2np.tokenizer.vocabulary import (
    END_OF_TEXT,
    Vocabulary,
    check_bytes,
    check_ids,
)

FILE_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""The names under which the two files are found in a model's folder, the first that exist."""

# Of OpenAI's own two files. Tests show what is taken for granted of them: see below, and that each
# token is what its own text is merged to.
_OPENAI_CRC32 = (0x6E35860C, 0xCF4B72C4)
_OPENAI_MERGES_CRC32 = 0x49F9CBC7  # of the lines that are merges

_PLAIN_SPECIAL_TOKENS = 16  # special tokens without brackets that no file should have more of


def read_gpt2_files(vocab_file: Path, merges_file: Path) -> Vocabulary:
    """Read the vocabulary (JSON: token → id) and the merges (a text line each, by rank).

    Tokens that are neither a single byte nor made by a merge can't come out of a text. Which of
    them are found in it as they stand, such as `<|endoftext|>`, the small files beside these two
    say: see `gpt2np.tokenizer.special_tokens`.

    Raises:
        TokenizerError: a file can't be read or parsed, or they don't fit each other.
    """
    for file in (vocab_file, merges_file):
        check_is_file(file, TokenizerError)
    if _are_openais_files(vocab_file, merges_file):
        return _openais_vocabulary(merges_file)
    ids = read_json_object(vocab_file, TokenizerError, max_bytes=LARGE_JSON_BYTES)
    lines = _read_merges(merges_file)
    check_ids(ids, vocab_file)
    check_bytes(ids, vocab_file)
    unmade = _unmade_tokens(ids, lines, vocab_file, merges_file)
    ranks = dict(zip(lines, range(len(lines)), strict=True))
    return _with_added_tokens(ids, ranks, unmade, vocab_file.parent)


def are_openais(merges: Iterable[str]) -> bool:
    """Whether these ("left right", by rank) are the merges of GPT-2."""
    return crc32("\n".join(merges).encode("utf-8", "replace")) == _OPENAI_MERGES_CRC32


def _are_openais_files(vocab_file: Path, merges_file: Path) -> bool:
    try:
        return (_crc32(vocab_file), _crc32(merges_file)) == _OPENAI_CRC32
    except OSError:
        return False  # the reader says what is wrong


def _openais_vocabulary(merges_file: Path) -> Vocabulary:
    """OpenAI's own vocabulary: first the bytes, then a token for each merge, then one more.

    So merges.txt says it all, and twice as fast as vocab.json could be parsed and both be checked.
    """
    _, _, text = merges_file.read_text(encoding="utf-8").rstrip("\n").partition("\n")
    lines = text.split("\n")
    tokens = [*CHARACTER_OF_BYTE.values(), *text.replace(" ", "").split("\n"), END_OF_TEXT]
    vocabulary = _with_added_tokens(
        dict(zip(tokens, range(len(tokens)), strict=True)),
        dict(zip(lines, range(len(lines)), strict=True)),
        [END_OF_TEXT],
        merges_file.parent,
    )
    return vocabulary if END_OF_TEXT in vocabulary.ids else vocabulary.as_self_encoding()


def _unmade_tokens(ids: dict[str, int], lines: list[str], vocab: Path, merges: Path) -> list[str]:
    """The tokens that are neither a byte nor made by a merge."""
    made = "\n".join(lines).replace(" ", "").split("\n") if lines else []
    if not all(map(ids.__contains__, made)):
        left, right = next(line for line in lines if line.replace(" ", "") not in ids).split(" ")
        raise TokenizerError(
            f"{merges} merges {left!r} and {right!r}, but {vocab} has no token {left + right!r}; "
            "the two files must come from the same model"
        )
    if foreign := set("".join(made)) - BYTE_OF_CHARACTER.keys():
        stranger = next(token for token in made if not foreign.isdisjoint(token))
        raise TokenizerError(f"{merges}: {stranger!r} is not in GPT-2's alphabet")
    unmade = sorted(ids.keys() - made - BYTE_OF_CHARACTER.keys())
    plain = list(filterfalse(_looks_special, unmade))
    if len(plain) > _PLAIN_SPECIAL_TOKENS:
        raise TokenizerError(
            f"{merges} looks cut off: no merge makes {len(plain)} of the tokens in {vocab}, "
            f"{plain[0]!r} among them"
        )
    return unmade


def _looks_special(token: str) -> bool:
    return token[0] in "<["


def _crc32(path: Path) -> int:
    return crc32(path.read_bytes())


def can_hold(vocabulary: Vocabulary) -> bool:
    """Whether the two files say all that there is to say about `vocabulary`."""
    contents = [token.content for token in vocabulary.added]
    simple = all(token == AddedToken(token.content, token.id) for token in vocabulary.added)
    known = simple and vocabulary.ids.keys().isdisjoint(contents)
    few = len(list(filterfalse(_looks_special, contents))) <= _PLAIN_SPECIAL_TOKENS
    plain = Vocabulary({}, {}, vocabulary.added)
    return known and few and replace(vocabulary, ids={}, ranks={}) == plain


def write_gpt2_files(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocab.json` (added tokens among the others, by id) and `merges.txt` into `folder`."""
    import json

    ids = vocabulary.ids | {token.content: token.id for token in vocabulary.added}
    by_id = dict(sorted(ids.items(), key=lambda item: item[1]))
    lines = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    vocab_name, merges_name = FILE_NAMES[0]
    atomic_write_text(
        folder / vocab_name, json.dumps(by_id, ensure_ascii=False, separators=(",", ":"))
    )
    atomic_write_text(folder / merges_name, "\n".join(["#version: 0.2", *lines, ""]))


def _read_merges(path: Path) -> list[str]:
    """The lines "left right", the first merge first."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TokenizerError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: not UTF-8 at byte {error.start}") from error
    lines = text.rstrip("\n").split("\n")
    start = 1 if lines[0].startswith("#version") else 0
    merges = lines[start:]
    spaces = text.count(" ", len(lines[0]) if start else 0)
    ends = " \n" in text or "\n " in text or text.endswith(" ") or text.startswith(" ")
    if spaces != len(merges) or ends or False in [" " in line for line in merges]:
        _find_malformed(merges, start + 1, path)
    return [line for line in merges if line] if "" in merges else merges


def _find_malformed(lines: list[str], first: int, path: Path) -> None:
    for number, line in enumerate(lines, first):
        left, _, right = line.partition(" ")
        if line and (not left or not right or " " in right):
            raise TokenizerError(f"{path}, line {number}: expected two tokens, found {line!r}")


def _with_added_tokens(
    ids: dict[str, int], ranks: dict[str, int], unmade: list[str], folder: Path
) -> Vocabulary:
    """The vocabulary, with the added tokens that the small files in `folder` name.

    `ids` holds every token of the vocabulary; `unmade` are those that no merge makes.
    """
    from gpt2np.tokenizer.special_tokens import read_for_gpt2_files

    special = read_for_gpt2_files(folder)
    added = special.added_to(ids)
    for content in {token.content for token in added}.intersection(unmade):
        del ids[content]
    roles = special.roles_of(added)
    return Vocabulary(ids, ranks, added, prefix_space=special.prefix_space, roles=roles)
