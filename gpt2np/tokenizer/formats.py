"""Read and write vocabularies: find the files, and select the format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gpt2np.data.files import atomic_write_text, writing
from gpt2np.errors import TokenizerError, error_reason
from gpt2np.tokenizer import gpt2_files
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

TOKENIZER_JSON = "tokenizer.json"


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
    if path.suffix == ".json":
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path)
    raise TokenizerError(f"{path} is not a vocabulary: expected a folder or a .json file")


def _read_folder(folder: Path) -> Vocabulary:
    if (tokenizer_json := folder / TOKENIZER_JSON).exists():
        from gpt2np.tokenizer.special_tokens import read_config_for_tokenizer_json
        from gpt2np.tokenizer.tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(tokenizer_json, read_config_for_tokenizer_json(folder))
    for vocab, merges in gpt2_files.FILE_NAMES:
        if (folder / vocab).exists() and (folder / merges).exists():
            return gpt2_files.read_gpt2_files(folder / vocab, folder / merges)
    pairs = (" and ".join(names) for names in gpt2_files.FILE_NAMES)
    raise TokenizerError(
        f"{folder} has no vocabulary: expected {' or '.join([TOKENIZER_JSON, *pairs])}; add the "
        'files, or name another vocabulary, such as "gpt2"',
        param="tokenizer",
    )


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `vocabulary` in the formats of `tokenizers`, `transformers` and gpt2np.

    The files are `tokenizer.json` and `tokenizer_config.json`. If GPT-2's format can express the
    vocabulary, `vocab.json` and `merges.txt` are also written. Otherwise, existing files of these
    two names are removed. Existing `special_tokens_map.json` and `added_tokens.json` are always
    removed.

    Raises TokenizerError if the formats can't express the vocabulary, and WriteError if the folder
    can't be created or written to. After an error, a new folder is removed.
    """
    is_new = not folder.exists()
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _write_files(vocabulary, folder)
    except BaseException:
        if is_new:
            import shutil  # slow to import

            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_files(vocabulary: Vocabulary, folder: Path) -> None:
    import json

    from gpt2np.tokenizer.special_tokens import CONFIG_FILE, FILE_NAMES
    from gpt2np.tokenizer.tokenizer_json import write_tokenizer_json

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
