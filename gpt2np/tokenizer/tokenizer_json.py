"""Hugging Face's `tokenizer.json`, for byte-pair encodings of GPT-2's family.

The file says piece by piece how a text becomes ids (normalizer, pre-tokenizer, model, added tokens,
decoder; `tokenizers` reads and writes it). What this tokenizer does exactly is read; anything else
is refused by name, because ids that are almost right are wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from gpt2np.data.files import LARGE_JSON_BYTES, atomic_write_text, read_json_object
from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.added import AddedToken
from gpt2np.tokenizer.alphabet import BYTE_OF_CHARACTER
from gpt2np.tokenizer.gpt2_files import are_openais
from gpt2np.tokenizer.special_tokens import CONFIG, SpecialTokens
from gpt2np.tokenizer.split import GPT2_PATTERN, HF_GPT2_PATTERN, KNOWN_PATTERNS
from gpt2np.tokenizer.vocabulary import SPACE, Vocabulary, check_bytes, check_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What the regular expressions of `tokenizers` (Oniguruma's) and of `regex` understand differently.
_UNLIKE_ONIGURUMA = re.compile(
    r"\\[hHAZzGRXKOyY1-9]|\\[xkg][{<]|&&|\[\[|\(\?[a-z-]*m|(?<!\\)\$|(?<![\[\\])\^"
).search

_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")


def read_tokenizer_json(path: Path, special: SpecialTokens | None = None) -> Vocabulary:
    """Read a `tokenizer.json`. Truncation and padding, which are for batches, are ignored.

    Args:
        path: the file.
        special: what the small files beside it say; None to read it as `tokenizers` does, which
            knows nothing of them.

    Raises:
        TokenizerError: the file is damaged, or asks for something that gpt2np doesn't do.
    """
    content = read_json_object(path, TokenizerError, max_bytes=LARGE_JSON_BYTES)
    if not isinstance(content.get("model"), dict):
        raise TokenizerError(
            f'{path} is no tokenizer.json: it has no "model" with a vocabulary; name the folder '
            f"with the vocabulary, or another file"
        )
    try:
        return _vocabulary(content, path, special or SpecialTokens())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"{path} is damaged: {type(error).__name__} {error}") from error


def _vocabulary(content: dict[str, Any], path: Path, special: SpecialTokens) -> Vocabulary:
    model = content["model"]
    _refuse_unknown_model(model, path)
    steps = _pre_tokenizers(content.get("pre_tokenizer"), path)
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]
    if len(byte_level) > 1 or (byte_level and steps[-1] is not byte_level[0]):
        raise _refuse(path, "ByteLevel before another pre-tokenizer")
    if len(steps) > 1 and byte_level and byte_level[0].get("add_prefix_space", True):
        raise _refuse(path, "add_prefix_space after another pre-tokenizer")
    _check_decoder(content.get("decoder"), bool(byte_level), path)
    _check_post_processor(content.get("post_processor"), path)
    ranks = _ranks(model["merges"], bool(byte_level), path)
    made = list(map(str.replace, ranks, repeat(" "), repeat("")))
    ids = _ids(model["vocab"], ranks, made, bool(byte_level), path)
    own = _added_tokens(content.get("added_tokens") or [], path)
    added = special.added_to(model["vocab"], own, path)
    _take_out(added, ids, set(made), bool(byte_level))
    if byte_level:
        check_bytes(ids, path)
    vocabulary = Vocabulary(
        ids=ids,
        ranks=ranks,
        added=added,
        patterns=tuple(pattern for step in steps for pattern in _patterns(step, path)),
        byte_level=bool(byte_level),
        nfc=_is_nfc(content.get("normalizer"), path),
        prefix_space=bool(byte_level and byte_level[0].get("add_prefix_space", True)),
        whole_pieces=bool(model.get("ignore_merges")),
        unknown=None if byte_level else model.get("unk_token"),
        roles=special.roles_of(added),
    )
    if special.gpt2:
        vocabulary = _as_gpt2_tokenizer(vocabulary, special, path)
    # Not, if there are more tokens than those of the bytes and merges, or a merge comes twice.
    genuine = byte_level and len(vocabulary.ids) - 256 == len(ranks) == len(model["merges"])
    return vocabulary.as_self_encoding() if genuine and are_openais(ranks) else vocabulary


def _as_gpt2_tokenizer(vocabulary: Vocabulary, special: SpecialTokens, path: Path) -> Vocabulary:
    """As transformers' GPT2Tokenizer has it, which takes the tokens and merges of the file only."""
    changed = replace(vocabulary, prefix_space=special.prefix_space)
    plain = Vocabulary(changed.ids, changed.ranks, changed.added, prefix_space=changed.prefix_space)
    if changed != plain:
        raise TokenizerError(
            f"{path}: transformers reads it as a GPT2Tokenizer and ignores its normalizer, "
            'pre_tokenizer and ignore_merges, which are not GPT-2\'s; set "tokenizer_class": '
            f'"PreTrainedTokenizerFast" in {path.parent / CONFIG} if they count'
        )
    return changed


def _refuse(path: Path, what: str) -> TokenizerError:
    return TokenizerError(f"{path}: gpt2np does not do {what}, and would give other ids")


def _refuse_unknown_model(model: dict[str, Any], path: Path) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise _refuse(path, f"the model {model.get('type', 'without merges')!r}, only 'BPE'")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise _refuse(path, f"the BPE model's {option} = {model[option]!r}")
    if model.get("fuse_unk") and model.get("unk_token"):
        raise _refuse(path, "the BPE model's fuse_unk")


def _pre_tokenizers(step: dict[str, Any] | None, path: Path) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [each for inner in step["pretokenizers"] for each in _pre_tokenizers(inner, path)]
    if step["type"] not in ("ByteLevel", "Split", "Digits"):
        raise _refuse(path, f"the pre-tokenizer {step['type']!r}")
    return [step]


def _patterns(step: dict[str, Any], path: Path) -> list[str]:
    """The split patterns of a pre-tokenizer, none or one."""
    if step["type"] == "ByteLevel":
        return [GPT2_PATTERN] if step.get("use_regex", True) else []
    if step["type"] == "Digits":
        return [r"\p{N}" if step["individual_digits"] else r"\p{N}+"]
    ((kind, pattern),) = step["pattern"].items()
    if kind not in ("Regex", "String"):
        raise _refuse(path, f"a pattern of the kind {kind!r}")
    if kind == "Regex" and pattern not in KNOWN_PATTERNS and (unlike := _UNLIKE_ONIGURUMA(pattern)):
        raise _refuse(path, f"{unlike[0]!r} in the split pattern {pattern!r}")
    behavior = (step["behavior"], bool(step.get("invert")))
    if behavior not in (("Isolated", False), ("Isolated", True), ("Removed", True)):
        raise _refuse(path, f"Split with behavior {behavior[0]!r} and invert = {behavior[1]}")
    import regex

    pattern = regex.escape(pattern) if kind == "String" else pattern
    if behavior == ("Removed", True) and pattern != GPT2_PATTERN and not _covers_all(pattern):
        raise _refuse(path, "Split with behavior 'Removed' where the pattern may leave text out")
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise _refuse(path, f"the split pattern {pattern!r} ({error})") from error
    return [GPT2_PATTERN if pattern == HF_GPT2_PATTERN else pattern]


def _covers_all(pattern: str) -> bool:
    return pattern.endswith(r"|\s+") and r"[^\s\p{L}\p{N}]" in pattern


def _is_nfc(normalizer: dict[str, Any] | None, path: Path) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        kinds = [_is_nfc(inner, path) for inner in normalizer["normalizers"]]
        return any(kinds)
    if normalizer["type"] != "NFC":
        raise _refuse(path, f"the normalizer {normalizer['type']!r}")
    return True


def _check_decoder(decoder: dict[str, Any] | None, byte_level: bool, path: Path) -> None:
    expected = ("ByteLevel",) if byte_level else ("Fuse", "BPEDecoder")
    if decoder is not None and decoder["type"] not in expected:
        raise _refuse(path, f"the decoder {decoder['type']!r}")
    if decoder is not None and decoder["type"] == "BPEDecoder" and decoder.get("suffix"):
        raise _refuse(path, f"the decoder's suffix {decoder['suffix']!r}")


def _check_post_processor(step: dict[str, Any] | None, path: Path) -> None:
    """A post-processor may be there, as long as it adds no tokens."""
    if step is None or step["type"] == "ByteLevel":
        return
    if step["type"] == "TemplateProcessing":
        if extra := [
            part["SpecialToken"]["id"] for part in step["single"] if "SpecialToken" in part
        ]:
            raise TokenizerError(
                f"{path} has a post-processor that adds {extra[0]} to every text; take it out of "
                "the file, and put the id there yourself"
            )
        return
    if step["type"] != "Sequence":
        raise _refuse(path, f"the post-processor {step['type']!r}")
    for inner in step["processors"]:
        _check_post_processor(inner, path)


def _added_tokens(entries: list[dict[str, Any]], path: Path) -> tuple[AddedToken, ...]:
    for entry in entries:
        if not entry["content"] or type(entry["id"]) is not int or entry["id"] < 0:
            raise TokenizerError(f"{path} is damaged: the added token {entry}")
    tokens = [
        AddedToken(
            entry["content"], entry["id"], **{flag: bool(entry.get(flag)) for flag in _FLAGS}
        )
        for entry in entries
    ]
    check_ids({token.content: token.id for token in tokens}, path)
    return tuple(tokens)  # in this order they are added


def _ids(
    vocab: dict[str, int], merges: Iterable[str], made: list[str], byte_level: bool, path: Path
) -> dict[str, int]:
    """token → id, spelled as in a Vocabulary. made: the tokens that the merges give."""
    check_ids(vocab, path)
    ids = dict(vocab) if byte_level else {_spaced(token): n for token, n in vocab.items()}
    if not all(map(ids.__contains__, made)):
        wrong = next(merge for merge, token in zip(merges, made, strict=True) if token not in ids)
        raise TokenizerError(f"{path}: the vocabulary has no token for the merge {wrong!r}")
    return ids


def _take_out(
    added: Iterable[AddedToken], ids: dict[str, int], made: set[str], byte_level: bool
) -> None:
    """Leave in `ids` of the `added` tokens only those that the model itself can give, too.

    made: the tokens that merges give.
    """
    for token in added:
        spelled = token.content if byte_level else _spaced(token.content)
        single = spelled in BYTE_OF_CHARACTER if byte_level else len(spelled) == 1
        if spelled not in made and not single:
            ids.pop(spelled, None)


def _ranks(merges: list[Any], byte_level: bool, path: Path) -> dict[str, int]:
    """ "left right" → rank, from ["left", "right"] or, as older files have it, "left right"."""
    if not byte_level:
        merges = [m if isinstance(m, str) else [_spaced(part) for part in m] for m in merges]
    keys = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    spaces = list(map(str.count, keys, repeat(" ")))
    if set(spaces) - {1}:
        number = next(number for number, count in enumerate(spaces) if count != 1)
        raise TokenizerError(
            f"{path}: merge {number} is {merges[number]!r}, but a merge is two tokens that "
            "join to a third"
        )
    return dict(zip(keys, range(len(keys)), strict=True))


def _spaced(token: str) -> str:
    return token.replace(" ", SPACE)


def write_tokenizer_json(vocabulary: Vocabulary, path: Path) -> None:
    """Write a `tokenizer.json` that `tokenizers` and `transformers` read to the same effect."""
    _check_can_be_written(vocabulary, path)
    merges = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token.id, "content": token.content}
            | {flag: getattr(token, flag) for flag in _FLAGS}
            for token in vocabulary.added
        ],
        "normalizer": {"type": "NFC"} if vocabulary.nfc else None,
        "pre_tokenizer": _pre_tokenizer_of(vocabulary),
        "post_processor": _byte_level_step(vocabulary) if vocabulary.byte_level else None,
        "decoder": _byte_level_step(vocabulary) if vocabulary.byte_level else {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": vocabulary.whole_pieces,
            "vocab": _in_order_of_ids(vocabulary),
            "merges": [[part.replace(SPACE, " ") for part in key.split(" ")] for key in merges],
        },
    }
    atomic_write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _check_can_be_written(vocabulary: Vocabulary, path: Path) -> None:
    for token in vocabulary.added:
        if vocabulary.ids.get(_spaced(token.content), token.id) != token.id:
            raise TokenizerError(
                f"{path} can't hold a token {token.content!r} in the vocabulary and an added one"
            )
    if vocabulary.prefix_space and vocabulary.patterns not in ((), (GPT2_PATTERN,)):
        raise TokenizerError(f"{path} can't hold prefix_space with patterns other than GPT-2's")


def _in_order_of_ids(vocabulary: Vocabulary) -> dict[str, int]:
    ids = {token.replace(SPACE, " "): number for token, number in vocabulary.ids.items()}
    ids |= {token.content: token.id for token in vocabulary.added}
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def _byte_level_step(vocabulary: Vocabulary, use_regex: bool = False) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": vocabulary.prefix_space,
        "trim_offsets": False,
        "use_regex": use_regex,
    }


def _pre_tokenizer_of(vocabulary: Vocabulary) -> dict[str, Any] | None:
    if vocabulary.byte_level and vocabulary.patterns == (GPT2_PATTERN,):
        return _byte_level_step(vocabulary, use_regex=True)
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in vocabulary.patterns
    ]
    steps += [_byte_level_step(vocabulary)] if vocabulary.byte_level else []
    return {"type": "Sequence", "pretokenizers": steps} if steps else None
