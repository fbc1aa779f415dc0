"""A trained vocabulary as files that `tokenizers` and `transformers` read.

tokenizer.json holds everything; vocab.json and merges.txt are GPT-2's own format, which knows
neither another alphabet nor another pattern.
"""

import json
from pathlib import Path
from typing import Any

from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.pieces import PATTERNS_THAT_CUT_AT_SPACES
from gpt2np.tokenizer.tokenizer import END_OF_TEXT
from gpt2np.tokenizer.train import TrainedVocabulary

UNKNOWN = "<unk>"
"""With characters as the alphabet, the special token for what is not among them."""


def save(trained: TrainedVocabulary, folder: Path) -> list[Path]:
    """Write the vocabulary to `folder`, which is made if need be; returns the files.

    Each file is written beside its place and then moved there, so none is ever half.

    Raises:
        TokenizerError: a file can't be written.
    """
    contents = {
        "tokenizer.json": _json(tokenizer_json(trained)),
        "tokenizer_config.json": _json(_tokenizer_config(trained)),
    }
    if trained.options.alphabet == "bytes":
        contents["vocab.json"] = json.dumps(_ids(trained), ensure_ascii=False)
        lines = ["#version: 0.2", *map(" ".join, trained.merges), ""]
        contents["merges.txt"] = "\n".join(lines)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            part = folder / f"{name}.part"
            part.write_text(content, encoding="utf-8", newline="\n")
            part.replace(folder / name)
    except OSError as error:
        raise TokenizerError(f"can't write to {folder}: {error.strerror}") from error
    return [folder / name for name in sorted(contents)]


def tokenizer_json(trained: TrainedVocabulary) -> dict[str, Any]:
    """The content of Hugging Face's tokenizer.json."""
    in_bytes = trained.options.alphabet == "bytes"
    added = [_added_token(number, token) for token, number in trained.special_ids.items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(trained.options.pattern, in_bytes),
        "post_processor": None,
        "decoder": _byte_level(use_regex=True) if in_bytes else {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN if UNKNOWN in trained.special_ids else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": _ids(trained),
            "merges": trained.merges,
        },
    }


def _tokenizer_config(trained: TrainedVocabulary) -> dict[str, Any]:
    roles = {"unk_token": UNKNOWN, "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: token for role, token in roles.items() if token in trained.special_ids},
    }


def _ids(trained: TrainedVocabulary) -> dict[str, int]:
    return {token: number for number, token in enumerate(trained.tokens)}


def _added_token(number: int, token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def _pre_tokenizer(pattern: str | None, in_bytes: bool) -> dict[str, Any] | None:
    if in_bytes and pattern in PATTERNS_THAT_CUT_AT_SPACES:
        return _byte_level(use_regex=True)
    steps = []
    if pattern is not None:
        how = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        steps.append({"type": "Split", **how})
    if in_bytes:
        steps.append(_byte_level(use_regex=False))
    if len(steps) == 2:
        return {"type": "Sequence", "pretokenizers": steps}
    return steps[0] if steps else None


def _byte_level(use_regex: bool) -> dict[str, Any]:
    flags = {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **flags}


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
