"""Reader and writer of Hugging Face's `tokenizer.json`, for byte-pair encodings like GPT-2's.

The file describes each step from text to token ids: normalizer, pre-tokenizer, model, added tokens,
decoder. The reader accepts the features that gpt2np implements exactly. Ignoring any other
feature would lead to wrong ids, so the reader raises an error that names the feature.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path

from gpt2np.data.files import atomic_write_text, read_json_object
from gpt2np.errors import TokenizerError, short_repr
from gpt2np.limits import MAX_VOCABULARY_BYTES
from gpt2np.tokenizer.pre_tokenizer import (
    GPT2_PATTERN,
    HF_GPT2_PATTERN,
    PATTERNS,
    QWEN2_PATTERN,
)
from gpt2np.tokenizer.special_tokens import CONFIG_FILE, TokenizerConfig, parse_token
from gpt2np.tokenizer.vocabulary import (
    CHAR_TO_BYTE,
    SPACE_PLACEHOLDER,
    AddedToken,
    Vocabulary,
    check_bytes,
    check_vocabulary,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNSUPPORTED_OPTIONS = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}


def read_tokenizer_json(path: Path, config: TokenizerConfig | None = None) -> Vocabulary:
    """Read a `tokenizer.json`, except its settings for truncation and padding.

    `config` holds the content of the files beside it. Hugging Face's `transformers` reads these
    files; `tokenizers` doesn't.

    Raises TokenizerError if the file is damaged, or needs a feature that gpt2np lacks.
    """
    content = read_json_object(path, TokenizerError, max_bytes=MAX_VOCABULARY_BYTES)
    if not isinstance(content.get("model"), dict):
        raise TokenizerError(
            f'{path} is not a tokenizer.json: it has no "model" with a vocabulary; name the folder '
            "of the vocabulary, or another file"
        )
    try:
        return _parse_vocabulary(content, path, config or TokenizerConfig())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"{path} is damaged: {type(error).__name__} {error}") from error


def _parse_vocabulary(content: dict[str, Any], path: Path, config: TokenizerConfig) -> Vocabulary:
    model = content["model"]
    _check_model(model, path)
    pattern, byte_level = _parse_pre_tokenizer(content.get("pre_tokenizer"), path)
    _check_decoder(content.get("decoder"), byte_level, path)
    _check_post_processor(content.get("post_processor"), path)
    ranks = _parse_merges(model["merges"], byte_level, path)
    made = list(map(str.replace, ranks, repeat(" "), repeat("")))
    ids = _parse_ids(model["vocab"], ranks, made, byte_level, path)
    json_tokens = _parse_added_tokens(content.get("added_tokens") or [], path)
    added, names = config.name_tokens(json_tokens, model["vocab"], path)
    _remove_added(added, ids, set(made), byte_level)
    if byte_level:
        check_bytes(ids, path)
    vocabulary = Vocabulary(
        ids=ids,
        ranks=ranks,
        added_tokens=added,
        pattern=pattern,
        byte_level=byte_level,
        nfc=bool(_steps(content.get("normalizer"), "normalizer", ("NFC",), path)),
        unk_token=None if byte_level else model.get("unk_token"),
        special_tokens_map=names,
    )
    _check_class(vocabulary, config, path)
    return vocabulary


def _check_class(vocabulary: Vocabulary, config: TokenizerConfig, path: Path) -> None:
    """Raise TokenizerError if a class of transformers replaces the file's settings by others."""
    name = config.tokenizer_class
    if name is None:
        return
    qwen = name == "Qwen2Tokenizer"
    expected = (QWEN2_PATTERN if qwen else GPT2_PATTERN, True, qwen)
    if (vocabulary.pattern, vocabulary.byte_level, vocabulary.nfc) != expected:
        raise TokenizerError(
            f"{path}: transformers reads it as a {name} and ignores its normalizer and "
            "pre_tokenizer, which differ from those of this class; to apply them, set "
            f'"tokenizer_class": "PreTrainedTokenizerFast" in {path.parent / CONFIG_FILE}'
        )


def _unsupported(path: Path, feature: str) -> TokenizerError:
    return TokenizerError(
        f"{path}: gpt2np does not support {feature}, and would produce different ids"
    )


def _check_model(model: dict[str, Any], path: Path) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise _unsupported(path, f"the model {model.get('type', 'without merges')!r}, only 'BPE'")
    for option in _UNSUPPORTED_OPTIONS:
        if model.get(option):
            raise _unsupported(path, f"the BPE model's {option} = {short_repr(model[option])}")
    if model.get("fuse_unk") and model.get("unk_token"):
        raise _unsupported(path, "the BPE model's fuse_unk")


def _steps(
    step: dict[str, Any] | None, name: str, types: tuple[str, ...], path: Path
) -> list[dict[str, Any]]:
    """Return a step in a list, and a Sequence as its steps; TokenizerError for other `types`."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        [inner] = (value for key, value in step.items() if key != "type")
        return [s for step in inner for s in _steps(step, name, types, path)]
    if step["type"] not in types:
        raise _unsupported(path, f"the {name} {step['type']!r}")
    return [step]


def _parse_pre_tokenizer(step: dict[str, Any] | None, path: Path) -> tuple[str | None, bool]:
    """Return the pattern, and whether tokens consist of bytes.

    A pre-tokenizer is a Split, a ByteLevel (with GPT-2's pattern), both in this order, or nothing.
    """
    steps = _steps(step, "pre-tokenizer", ("Split", "ByteLevel"), path)
    types = [step["type"] for step in steps]
    if types not in ([], ["Split"], ["ByteLevel"], ["Split", "ByteLevel"]):
        raise _unsupported(path, f"the pre-tokenizer {' + '.join(types)}")
    pattern = _parse_split(steps[0], path) if "Split" in types else None
    if "ByteLevel" not in types:
        return pattern, False
    if steps[-1].get("add_prefix_space", True):
        raise _unsupported(path, "add_prefix_space")
    if steps[-1].get("use_regex", True):
        if pattern is not None:
            raise _unsupported(path, "Split before ByteLevel with use_regex")
        pattern = GPT2_PATTERN
    return pattern, True


def _parse_split(step: dict[str, Any], path: Path) -> str:
    pattern = step["pattern"].get("Regex")
    pattern = GPT2_PATTERN if pattern == HF_GPT2_PATTERN else pattern
    if pattern not in PATTERNS.values() or step["behavior"] != "Isolated" or step.get("invert"):
        raise _unsupported(path, f"{short_repr(step)}; only GPT-2's and Qwen's patterns, isolated,")
    return str(pattern)


def _check_decoder(decoder: dict[str, Any] | None, byte_level: bool, path: Path) -> None:
    expected = "ByteLevel" if byte_level else "Fuse"
    if decoder is not None and decoder["type"] != expected:
        raise _unsupported(path, f"the decoder {decoder['type']!r}")


def _check_post_processor(step: dict[str, Any] | None, path: Path) -> None:
    """Raise TokenizerError for a post-processor that adds tokens or is of an unknown type."""
    for inner in _steps(step, "post-processor", ("ByteLevel", "TemplateProcessing"), path):
        if any("SpecialToken" in item for item in inner.get("single", ())):
            raise _unsupported(path, "a post-processor that adds tokens to every text")


def _parse_added_tokens(entries: list[dict[str, Any]], path: Path) -> tuple[AddedToken, ...]:
    """Parse `added_tokens`, in the order of the file, in which transformers adds them."""
    parsed = ((entry["id"], parse_token(entry, path, "added_tokens")) for entry in entries)
    tokens = [replace(token, id=token_id) for token_id, token in parsed]
    check_vocabulary({token.content: token.id for token in tokens}, path)
    return tuple(tokens)


def _parse_ids(
    vocab: dict[str, int], merges: Iterable[str], made: list[str], byte_level: bool, path: Path
) -> dict[str, int]:
    """Convert `vocab` to `Vocabulary.ids`; check that all tokens `made` by `merges` have an id."""
    check_vocabulary(vocab, path)
    ids = dict(vocab) if byte_level else {_spell(token): n for token, n in vocab.items()}
    if not all(map(ids.__contains__, made)):
        wrong = next(merge for merge, token in zip(merges, made, strict=True) if token not in ids)
        raise TokenizerError(f"{path}: the vocabulary has no token for the merge {wrong!r}")
    return ids


def _remove_added(
    added: Iterable[AddedToken], ids: dict[str, int], made: set[str], byte_level: bool
) -> None:
    """Remove `added` tokens from `ids`, except single characters and tokens `made` by merges."""
    for token in added:
        spelled = token.content if byte_level else _spell(token.content)
        single = spelled in CHAR_TO_BYTE if byte_level else len(spelled) == 1
        if spelled not in made and not single:
            ids.pop(spelled, None)


def _parse_merges(merges: list[Any], byte_level: bool, path: Path) -> dict[str, int]:
    """Map each merge "left right" to its rank; the file may write it as ["left", "right"]."""
    try:
        keys = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        if not byte_level:
            pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
            keys = [" ".join(map(_spell, pair)) for pair in pairs]
        are_pairs = {*map(str.count, keys, repeat(" "))} <= {1}
    except (TypeError, AttributeError):  # a number instead of a merge or a token
        are_pairs = False
    if not are_pairs:
        wrong = next(index for index, merge in enumerate(merges) if not _is_pair(merge))
        raise TokenizerError(f"{path}: merge {wrong} is {merges[wrong]!r:.60}; expected two tokens")
    return dict(zip(keys, range(len(keys)), strict=True))


def _is_pair(merge: Any) -> bool:
    tokens = merge.split(" ") if isinstance(merge, str) else merge
    return (
        isinstance(tokens, list)
        and len(tokens) == 2
        and all(isinstance(token, str) and " " not in token for token in tokens)
    )


def _spell(token: str) -> str:
    return token.replace(" ", SPACE_PLACEHOLDER)


def write_tokenizer_json(vocabulary: Vocabulary, path: Path) -> None:
    """Write a `tokenizer.json` with which `tokenizers` and `transformers` produce gpt2np's ids."""
    merges = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    ids = {token.replace(SPACE_PLACEHOLDER, " "): n for token, n in vocabulary.ids.items()}
    added = {token.content: token.id for token in vocabulary.added_tokens}
    if twice := [name for name, n in added.items() if ids.get(name, n) != n]:
        raise TokenizerError(f"{path} cannot hold {twice[0]!r} as a token and as an added token")
    ids |= added
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {**asdict(token), "lstrip": False, "rstrip": False} for token in vocabulary.added_tokens
        ],
        "normalizer": {"type": "NFC"} if vocabulary.nfc else None,
        "pre_tokenizer": _pre_tokenizer_json(vocabulary),
        "post_processor": _BYTE_LEVEL if vocabulary.byte_level else None,
        "decoder": _BYTE_LEVEL if vocabulary.byte_level else {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
            "merges": [
                [token.replace(SPACE_PLACEHOLDER, " ") for token in key.split(" ")]
                for key in merges
            ],
        },
    }
    atomic_write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _pre_tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any] | None:
    if vocabulary.byte_level and vocabulary.pattern == GPT2_PATTERN:
        return _BYTE_LEVEL | {"use_regex": True}
    steps: list[dict[str, Any]] = []
    if (pattern := vocabulary.pattern) is not None:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        steps.append({**split, "invert": False})
    steps += [_BYTE_LEVEL] if vocabulary.byte_level else []
    return {"type": "Sequence", "pretokenizers": steps} if steps else None
