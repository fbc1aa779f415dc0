"""Vocabulary files: find, read and write them.

The formats are Hugging Face's `tokenizer.json` (module `tokenizer_json`) and GPT-2's two files:
`vocab.json` + `merges.txt`, or `encoder.json` + `vocab.bpe`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from zlib import crc32

from gpt2np.data.files import (
    atomic_folder,
    atomic_write_text,
    read_bytes,
    read_json_object,
    reading,
)
from gpt2np.errors import TokenizerError, short_repr
from gpt2np.limits import MAX_VOCABULARY_BYTES
from gpt2np.tokenizer.vocabulary import (
    BYTE_TO_CHAR,
    CHAR_TO_BYTE,
    END_OF_TEXT,
    AddedToken,
    Vocabulary,
    check_bytes,
    check_vocabulary,
)

TOKENIZER_JSON = "tokenizer.json"
GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of the file of ids and the file of merges. If a folder has both pairs, the first counts."""

# Checksums of OpenAI's two files. Tests check what the fast path assumes about these files: the
# order of the ids, and that merging the text of any token gives that token.
_OPENAI_CRC32 = (0x6E35860C, 0xCF4B72C4)

# Maximum number of tokens that no merge makes and that don't begin with a bracket. A larger number
# means that merges are missing.
_MAX_PLAIN_SPECIAL_TOKENS = 16
_SPECIAL_STARTS = "<["


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary from a folder, or from one of its files.

    Raises TokenizerError if the vocabulary is missing or damaged, or needs a feature that gpt2np
    lacks.
    """
    with reading(path, TokenizerError):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return _read_folder(path)
    if not exists:
        raise TokenizerError(f"there is no vocabulary at {path}; expected a folder or a file")
    for vocab, merges in GPT2_FILES:
        if path.name in (vocab, merges):
            return read_gpt2_files(path.parent / vocab, path.parent / merges)
    if path.suffix == ".json":
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path)
    raise TokenizerError(f"{path} is not a vocabulary: expected a folder or a .json file")


def _read_folder(folder: Path) -> Vocabulary:
    if (tokenizer_json := folder / TOKENIZER_JSON).exists():
        from gpt2np.tokenizer.special_tokens import read_config
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(tokenizer_json, read_config(folder, two_files=False))
    for vocab, merges in GPT2_FILES:
        if (folder / vocab).exists() and (folder / merges).exists():
            return read_gpt2_files(folder / vocab, folder / merges)
    pairs = (" and ".join(names) for names in GPT2_FILES)
    raise TokenizerError(
        f"{folder} has no vocabulary: expected {' or '.join([TOKENIZER_JSON, *pairs])}; add the "
        'files, or name another vocabulary, such as "gpt2"',
    )


def read_gpt2_files(vocab_file: Path, merges_file: Path) -> Vocabulary:
    """Read a vocabulary: tokens and ids from `vocab_file`, merges in order from `merges_file`.

    Added tokens come from the special tokens files in the same folder (see
    `gpt2np.tokenizer.special_tokens`). Other tokens that are neither a byte nor made by a merge can
    be decoded, but encoding never produces them.

    Raises TokenizerError if a file can't be read or parsed, or the files don't match.
    """
    max_bytes = MAX_VOCABULARY_BYTES
    contents = [
        read_bytes(f, TokenizerError, max_bytes=max_bytes) for f in (vocab_file, merges_file)
    ]
    if tuple(map(crc32, contents)) == _OPENAI_CRC32:
        return _read_openai_merges(merges_file, contents[1].decode())
    ids = read_json_object(vocab_file, TokenizerError, max_bytes=max_bytes)
    lines = _read_merges(merges_file, contents[1])
    check_vocabulary(ids, vocab_file)
    check_bytes(ids, vocab_file)
    without_merges = _find_tokens_without_merges(ids, lines, vocab_file, merges_file)
    ranks = dict(zip(lines, range(len(lines)), strict=True))
    return _with_added_tokens(ids, ranks, without_merges, vocab_file.parent)


def _read_openai_merges(merges_file: Path, text: str) -> Vocabulary:
    """Build OpenAI's vocabulary from the merges alone: twice as fast as parsing vocab.json.

    Ids are given to the 256 bytes first, then to the merges in order of rank, then to END_OF_TEXT.
    """
    _, _, text = text.rstrip("\n").partition("\n")
    lines = text.split("\n")
    tokens = [*BYTE_TO_CHAR.values(), *text.replace(" ", "").split("\n"), END_OF_TEXT]
    vocabulary = _with_added_tokens(
        dict(zip(tokens, range(len(tokens)), strict=True)),
        dict(zip(lines, range(len(lines)), strict=True)),
        [END_OF_TEXT],
        merges_file.parent,
    )
    if END_OF_TEXT not in vocabulary.ids:  # what the checksum tells takes 4 ms to compute
        vars(vocabulary)["can_ignore_merges"] = True
    return vocabulary


def _find_tokens_without_merges(
    ids: dict[str, int], lines: list[str], vocab: Path, merges: Path
) -> list[str]:
    """Return the tokens that are neither a byte nor made by a merge; check that the files match."""
    merged = "\n".join(lines).replace(" ", "").split("\n") if lines else []
    if not all(map(ids.__contains__, merged)):
        left, right = next(line for line in lines if line.replace(" ", "") not in ids).split(" ")
        raise TokenizerError(
            f"{merges} merges {short_repr(left)} and {short_repr(right)}, but {vocab} has no token "
            f"{short_repr(left + right)}; use two files of the same model"
        )
    without_merges = sorted(ids.keys() - merged - CHAR_TO_BYTE.keys())
    plain = [token for token in without_merges if token[0] not in _SPECIAL_STARTS]
    if len(plain) > _MAX_PLAIN_SPECIAL_TOKENS:
        raise TokenizerError(
            f"{merges} looks truncated: no merge makes {len(plain)} of the tokens in {vocab}, "
            f"such as {short_repr(plain[0])}"
        )
    return without_merges


def _read_merges(path: Path, data: bytes) -> list[str]:
    """Read the merges, written "left right", in order of rank."""
    try:
        text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: not UTF-8 at byte {error.start}") from error
    lines = text.rstrip("\n").split("\n")
    start = 1 if lines[0].startswith("#version") else 0
    for number, line in enumerate(lines[start:], start + 1):
        left, _, right = line.partition(" ")
        if line and (not left or not right or " " in right):
            raise TokenizerError(
                f"{path}, line {number}: expected two tokens, found {short_repr(line)}"
            )
    return [line for line in lines[start:] if line]


def _with_added_tokens(
    ids: dict[str, int], ranks: dict[str, int], without_merges: list[str], folder: Path
) -> Vocabulary:
    """Build the vocabulary; remove the added tokens among `without_merges` from `ids`."""
    from gpt2np.tokenizer.special_tokens import read_config

    config = read_config(folder, two_files=True)
    added, names = config.name_tokens(config.declared or (), ids)
    for content in {token.content for token in added}.intersection(without_merges):
        del ids[content]
    return Vocabulary(ids, ranks, added, special_tokens_map=names)


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocabulary` in the formats of `tokenizers`, `transformers` and gpt2np.

    The files are `tokenizer.json` and `tokenizer_config.json`. If GPT-2's format can express the
    vocabulary, `vocab.json` and `merges.txt` are also written. Older vocabulary files are removed.

    Raises WriteError if the folder can't be created or written to.
    """
    import json

    from gpt2np.tokenizer.special_tokens import CONFIG_FILE, FILE_NAMES
    from gpt2np.tokenizer.tokenizer_json import write_tokenizer_json

    with nullcontext(folder) if folder.exists() else atomic_folder(folder) as target:
        write_tokenizer_json(vocabulary, target / TOKENIZER_JSON)
        if has_gpt2_files := can_write_gpt2_files(vocabulary):
            write_gpt2_files(vocabulary, target)
        for name in FILE_NAMES if has_gpt2_files else (*FILE_NAMES, *GPT2_FILES[0]):
            (target / name).unlink(missing_ok=True)
        config = json.dumps(_tokenizer_config(vocabulary), ensure_ascii=False, indent=2)
        atomic_write_text(target / CONFIG_FILE, config + "\n")


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, object]:
    special = {token.content for token in vocabulary.added_tokens if token.special}
    default_keys = ("bos_token", "eos_token") if END_OF_TEXT in special else ()
    unknown = {} if vocabulary.unk_token is None else {"unk_token": vocabulary.unk_token}
    entries = [asdict(token) for token in vocabulary.added_tokens]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(entry.pop("id")): entry for entry in entries},
        **(vocabulary.special_tokens_map or dict.fromkeys(default_keys, END_OF_TEXT)),
        **unknown,
    }


def can_write_gpt2_files(vocabulary: Vocabulary) -> bool:
    """Tell whether vocab.json and merges.txt can express all of `vocabulary`."""
    added = vocabulary.added_tokens
    contents = [token.content for token in added]
    return (
        all(token == AddedToken(token.content, token.id) for token in added)
        and vocabulary.ids.keys().isdisjoint(contents)
        and sum(text[0] not in _SPECIAL_STARTS for text in contents) <= _MAX_PLAIN_SPECIAL_TOKENS
        and replace(vocabulary, ids={}, ranks={}) == Vocabulary({}, {}, added)
    )


def write_gpt2_files(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocab.json`, including added tokens, and `merges.txt` into `folder`."""
    import json

    ids = vocabulary.ids | {token.content: token.id for token in vocabulary.added_tokens}
    by_id = dict(sorted(ids.items(), key=lambda item: item[1]))
    lines = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    vocab_name, merges_name = GPT2_FILES[0]
    content = json.dumps(by_id, ensure_ascii=False, separators=(",", ":"))
    atomic_write_text(folder / vocab_name, content)
    atomic_write_text(folder / merges_name, "\n".join(["#version: 0.2", *lines, ""]))
