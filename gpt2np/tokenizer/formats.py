"""Read and write vocabularies: find the files, and select the format.

OpenAI's `.tiktoken` files are read here. Each line has the bytes of a token, in base64, and the
token's id, called its rank. The file has no merges: two neighboring tokens can be merged if the
result is a token, and the pair whose result has the lowest id is merged first. A piece that equals
a token needs no merging (tiktoken/src/lib.rs). The pattern and the special tokens are not in the
file, but in tiktoken's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from gpt2np.data.files import atomic_write_text, read_bytes
from gpt2np.errors import TokenizerError, error_reason, short_repr
from gpt2np.limits import limits
from gpt2np.tokenizer import gpt2_files
from gpt2np.tokenizer.pre_tokenizer import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    QWEN2_PATTERN,
)
from gpt2np.tokenizer.vocabulary import (
    END_OF_TEXT,
    AddedToken,
    Vocabulary,
    bytes_to_chars,
    check_bytes,
    check_vocabulary,
)

TOKENIZER_JSON = "tokenizer.json"
TIKTOKEN_SUFFIX = ".tiktoken"

TIKTOKEN_PATTERNS = {
    "cl100k_base": CL100K_PATTERN,
    "o200k_base": O200K_PATTERN,
    "qwen": QWEN2_PATTERN,
}
"""Pre-tokenizer pattern by file name without suffix; GPT-2's pattern is used for other names."""


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary from a folder, or from one of its files.

    Raises TokenizerError if the vocabulary is missing or damaged, or needs a feature that gpt2np
    lacks.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise TokenizerError(
            f"cannot look for a vocabulary at {path}: {error_reason(error)}"
        ) from error
    if is_folder:
        return _read_folder(path)
    if not exists:
        raise TokenizerError(f"there is no vocabulary at {path}; expected a folder or a file")
    for vocab, merges in gpt2_files.FILE_NAMES:
        if path.name in (vocab, merges):
            return gpt2_files.read_gpt2_files(path.parent / vocab, path.parent / merges)
    if path.suffix == TIKTOKEN_SUFFIX:
        return read_tiktoken(path)
    if path.suffix == ".json":
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path)
    raise TokenizerError(f"{path} is not a vocabulary: expected a folder, .json or .tiktoken")


def _read_folder(folder: Path) -> Vocabulary:
    if (tokenizer_json := folder / TOKENIZER_JSON).exists():
        from gpt2np.tokenizer.special_tokens import read_for_tokenizer_json
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(tokenizer_json, read_for_tokenizer_json(folder))
    for vocab, merges in gpt2_files.FILE_NAMES:
        if (folder / vocab).exists() and (folder / merges).exists():
            return gpt2_files.read_gpt2_files(folder / vocab, folder / merges)
    if tiktoken := sorted(folder.glob(f"*{TIKTOKEN_SUFFIX}")):
        return read_tiktoken(tiktoken[0])
    pairs = (" and ".join(names) for names in gpt2_files.FILE_NAMES)
    raise TokenizerError(
        "{0} has no vocabulary: expected {1}; add the files, or name another vocabulary, such as "
        "{tokenizer.setting}",
        folder,
        " or ".join([TOKENIZER_JSON, *pairs]),
        tokenizer="gpt2",
    )


def read_tiktoken(
    path: Path, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None
) -> Vocabulary:
    """Read a `.tiktoken` file, and add `special_tokens`, a dictionary from text to id.

    The default pre-tokenizer `pattern` depends on the file's name: see TIKTOKEN_PATTERNS.

    Raises TokenizerError if the file can't be read, or a line is malformed.
    """
    data = read_bytes(path, TokenizerError, max_bytes=limits().max_vocabulary_bytes)
    ids: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            token, rank = _parse_tiktoken_line(line, number, path)
            if token in ids:
                raise TokenizerError(f"{path}, line {number}: {short_repr(line)} repeats a token")
            if len(token) > (longest := limits().max_token_bytes):
                raise TokenizerError(
                    f"{path}, line {number}: the token has {len(token):,} bytes; expected at most "
                    f"{longest:,}"
                )
            ids[token] = rank
    added = [AddedToken(text, token_id) for text, token_id in (special_tokens or {}).items()]
    check_vocabulary(ids | {token.content: token.id for token in added}, path)
    check_bytes(ids, path)
    return Vocabulary(
        ids,
        _tiktoken_merges(ids, path),
        tuple(sorted(added, key=lambda token: token.id)),
        (pattern or TIKTOKEN_PATTERNS.get(path.stem.lower(), GPT2_PATTERN),),
        ignore_merges=True,
    )


def _tiktoken_merges(ids: dict[str, int], path: Path) -> dict[str, int]:
    """Return the merges that make the tokens `ids`; a token's id is the rank of its merges."""
    max_merges = limits().max_merges_per_token * len(ids)
    ranks: dict[str, int] = {}
    for token, rank in ids.items():
        for cut in range(1, len(token)):
            if token[:cut] in ids and token[cut:] in ids:
                ranks[f"{token[:cut]} {token[cut:]}"] = rank
        if len(ranks) > max_merges:
            raise TokenizerError(
                f"{path}: {len(ids):,} tokens have more than {max_merges:,} merges; no vocabulary "
                "in use has so many"
            )
    return ranks


def _parse_tiktoken_line(line: bytes, number: int, path: Path) -> tuple[str, int]:
    import base64

    try:
        encoded, rank = line.split()
        return bytes_to_chars(base64.b64decode(encoded, validate=True)), int(rank)
    except ValueError as error:
        raise TokenizerError(
            f"{path}, line {number}: expected a token in base64 and its rank, found "
            f"{short_repr(line)}"
        ) from error


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocabulary` in the formats of `tokenizers`, `transformers` and gpt2np.

    The files are `tokenizer.json` and `tokenizer_config.json`. If GPT-2's format can express the
    vocabulary, `vocab.json` and `merges.txt` are also written. Otherwise, existing files of these
    two names are removed. Existing `special_tokens_map.json` and `added_tokens.json` are always
    removed.

    Raises TokenizerError if the formats can't express the vocabulary, and OSError if the folder
    can't be created or written to. After an error, a new folder is removed.
    """
    import json

    from gpt2np.tokenizer.special_tokens import CONFIG_FILE, FILE_NAMES
    from gpt2np.tokenizer.tokenizer_json import write_tokenizer_json

    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_tokenizer_json(vocabulary, folder / TOKENIZER_JSON)
        obsolete: tuple[str, ...] = FILE_NAMES
        if gpt2_files.can_write_gpt2_files(vocabulary):
            gpt2_files.write_gpt2_files(vocabulary, folder)
        else:
            obsolete += gpt2_files.FILE_NAMES[0]  # of another vocabulary
        for name in obsolete:
            (folder / name).unlink(missing_ok=True)
        config = json.dumps(_tokenizer_config(vocabulary), ensure_ascii=False, indent=2)
        atomic_write_text(folder / CONFIG_FILE, config + "\n")
    except BaseException:
        if is_new:
            import shutil  # slow to import

            shutil.rmtree(folder, ignore_errors=True)
        raise


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
