"""Find a vocabulary's files and select their reader; write a vocabulary in all formats."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gpt2np.data.files import atomic_write_text
from gpt2np.errors import TokenizerError
from gpt2np.tokenizer import gpt2_files
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

TOKENIZER_JSON = "tokenizer.json"
TIKTOKEN_SUFFIX = ".tiktoken"
FOLDER_FILES = ((TOKENIZER_JSON,), *gpt2_files.FILE_NAMES)
"""Sets of files that make a vocabulary; in a folder with several sets, the first one counts."""


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary in a folder, or in a file: `tokenizer.json` or `….tiktoken`.

    Raises:
        TokenizerError: there is no vocabulary, or it is damaged.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise TokenizerError(f"can't look for a vocabulary at {path}: {error.strerror}") from error
    if is_folder:
        return _read_folder(path)
    if not exists:
        raise TokenizerError(
            f"there is no vocabulary at {path}; expected a folder or a file (for the name of a "
            f"model, use gpt2np.hub.find_vocabulary({str(path)!r}).folder)"
        )
    for vocab, merges in gpt2_files.FILE_NAMES:
        if path.name in (vocab, merges):
            return gpt2_files.read_gpt2_files(path.parent / vocab, path.parent / merges)
    if path.suffix == TIKTOKEN_SUFFIX:
        return _read_tiktoken(path)
    if path.suffix == ".json":
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path)
    raise TokenizerError(f"{path} is not a vocabulary: expected a folder, .json or .tiktoken")


def _read_folder(folder: Path) -> Vocabulary:
    for names in FOLDER_FILES:
        files = [folder / name for name in names]
        if all(file.exists() for file in files):
            if len(files) == 1:
                return _read_tokenizer_json_folder(folder)
            return gpt2_files.read_gpt2_files(files[0], files[1])
    if tiktoken := sorted(folder.glob(f"*{TIKTOKEN_SUFFIX}")):
        return _read_tiktoken(tiktoken[0])
    expected = " or ".join(" and ".join(names) for names in FOLDER_FILES)
    raise TokenizerError(f"{folder} has no vocabulary: expected {expected}")


def _read_tokenizer_json_folder(folder: Path) -> Vocabulary:
    from gpt2np.tokenizer.special_tokens import read_for_tokenizer_json
    from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

    return read_tokenizer_json(folder / TOKENIZER_JSON, read_for_tokenizer_json(folder))


def _read_tiktoken(path: Path) -> Vocabulary:
    from gpt2np.tokenizer.tiktoken_file import read_tiktoken

    return read_tiktoken(path)


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocabulary` in the formats of `tokenizers`, `transformers` and gpt2np.

    The files are `tokenizer.json`, `tokenizer_config.json` and, if they can hold the vocabulary,
    GPT-2's `vocab.json` and `merges.txt`. Existing files of these names are replaced or removed, as
    are older files that list special tokens.

    Raises:
        OSError: the folder can't be created or written to.
    """
    import json

    from gpt2np.tokenizer.special_tokens import FILE_NAMES as SPECIAL_TOKENS_FILES
    from gpt2np.tokenizer.tokenizer_json import write_tokenizer_json

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer_json(vocabulary, folder / TOKENIZER_JSON)
    if gpt2_files.can_write_gpt2_files(vocabulary):
        gpt2_files.write_gpt2_files(vocabulary, folder)
    else:  # remove those of another vocabulary
        for name in gpt2_files.FILE_NAMES[0]:
            (folder / name).unlink(missing_ok=True)
    for name in SPECIAL_TOKENS_FILES:
        (folder / name).unlink(missing_ok=True)
    config = json.dumps(_tokenizer_config(vocabulary), ensure_ascii=False, indent=2)
    atomic_write_text(folder / SPECIAL_TOKENS_FILES[0], config + "\n")


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
