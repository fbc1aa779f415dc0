"""Added tokens of a vocabulary's folder, by rule instead of guess.

    tokenizer.json           added tokens with ids and flags (`added_tokens`)
    tokenizer_config.json    names ("eos_token": …), settings and, since transformers 4.34, added
                             tokens with ids and flags (`added_tokens_decoder`)
    special_tokens_map.json  names; read only without `added_tokens_decoder`
    added_tokens.json        ids without flags, until transformers 4.33; refused beside vocab.json
                             without `added_tokens_decoder`

One file gives the ids: tokenizer.json, or else `added_tokens_decoder`. If both exist, they must
agree. A name must belong to an added token. With vocab.json, it may also belong to a token of the
vocabulary, and without `added_tokens_decoder` to a new token with the next id. So the ids are those
of transformers 5. Any other content is refused, because transformers would guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpt2np.data.files import read_json_object
from gpt2np.errors import TokenizerError
from gpt2np.limits import limits
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, AddedToken, check_vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG_FILE, MAP_FILE, _ADDED_FILE = FILE_NAMES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)

_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA_KEYS = ("extra_special_tokens", "additional_special_tokens")
_DECODER = "added_tokens_decoder"
_UNSUPPORTED = ("add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens")
_STRIPS = ("lstrip", "rstrip")  # whether a match includes the white space beside it

_ASSUMED_NAMES = {
    "GPT2Tokenizer": ("bos_token", "eos_token", "unk_token"),
    "Qwen2Tokenizer": ("eos_token", "unk_token", "pad_token"),
}
"""The names that a tokenizer class of transformers gives to END_OF_TEXT by default."""

_CLASS_OF_MODEL = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
_GENERAL_CLASSES = (None, "PreTrainedTokenizer", "TokenizersBackend")

_NO_ID = -1  # id of a token that has none yet
_NO_TOKEN = AddedToken("", _NO_ID)
_END_OF_TEXT_TOKEN = AddedToken(END_OF_TEXT, _NO_ID)


@dataclass(frozen=True)
class TokenizerConfig:
    """Content of the files beside a vocabulary."""

    path: Path = Path()  # tokenizer_config.json
    tokenizer_class: str | None = None  # without "Fast"; None for a class that takes any file
    # key such as "eos_token" → token without an id, in the order in which transformers adds them
    names: Mapping[str, AddedToken] = field(default_factory=dict)
    extra: tuple[AddedToken, ...] = ()  # further special tokens, without ids
    assumes_end_of_text: bool = False  # whether END_OF_TEXT is only a default of the class
    declared: tuple[AddedToken, ...] | None = None  # tokens with ids, sorted; None if no file

    def name_tokens(
        self, tokens: Iterable[AddedToken], vocab: Mapping[str, int], file: Path | None = None
    ) -> tuple[tuple[AddedToken, ...], dict[str, str]]:
        """Return all added tokens, sorted by id, and a dictionary from key to named token.

        `tokens` have ids. If they come from the tokenizer.json `file`, the names can't add more.

        Raises TokenizerError if a named token has no id, transformers gives other ids, or the
        declared tokens are not those of tokenizer.json.
        """
        tokens = [*tokens]
        if file and self.declared is not None and {*tokens} != {*self.declared}:
            raise self._refusal("the added tokens differ from those of tokenizer.json")
        found = {token.content: token for token in tokens}
        for token in self._unlisted_tokens(found, vocab):
            if file or not (self.declared is None or token.content in vocab):
                raise self._refusal(f"the special token {token.content!r:.60} has no id")
            found[token.content] = token
        special = {token.content for token in self.names.values()}
        added = [
            replace(token, special=token.special or token.content in special)
            for token in _assign_ids(found.values(), vocab, file or self.path)
        ]
        names = {key: t.content for key, t in self.names.items() if t.content in found}
        return tuple(sorted(added, key=lambda token: token.id)), names

    def _unlisted_tokens(
        self, listed: Mapping[str, AddedToken], vocab: Mapping[str, int]
    ) -> Iterable[AddedToken]:
        """Return the named tokens that are not `listed`, without duplicates."""
        unlisted: dict[str, AddedToken] = {}
        for token in (*self.names.values(), *self.extra):
            if token.content in listed:
                continue
            if unlisted.setdefault(token.content, token) != token:
                raise self._refusal(f"{token.content!r:.60} is described in two ways")
        if self.assumes_end_of_text and END_OF_TEXT in unlisted and END_OF_TEXT not in vocab:
            del unlisted[END_OF_TEXT]  # the model has no row for it
            if unlisted.keys() - vocab.keys():
                raise self._refusal(f"transformers adds {END_OF_TEXT}, which no file has")
        return unlisted.values()

    def _refusal(self, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {problem}; save the tokenizer with transformers 5")


def _assign_ids(
    tokens: Iterable[AddedToken], vocab: Mapping[str, int], path: Path
) -> Iterator[AddedToken]:
    """Yield `tokens` with the ids that transformers gives them if it adds them in this order.

    Raises TokenizerError if a token has another id, or the vocabulary skips ids.
    """
    next_id, has_gaps = len(vocab), max(vocab.values(), default=-1) >= len(vocab)
    for token in tokens:
        token_id = vocab.get(token.content, next_id)
        if token.id not in (_NO_ID, token_id) or (has_gaps and token.content not in vocab):
            raise TokenizerError(
                f"{path}: the added token {token.content!r:.60} has "
                f"{f'the id {token.id}' if token.id >= 0 else 'no id'}, but transformers gives it "
                f"{token_id}{', the id of another token' * has_gaps}"
            )
        yield replace(token, id=token_id)
        next_id = max(next_id, token_id + 1)


def read_config(folder: Path, *, two_files: bool) -> TokenizerConfig:
    """Read the files beside a tokenizer.json, or beside `two_files`: vocab.json and merges.txt.

    Raises TokenizerError if a file is damaged, or needs a feature that gpt2np lacks.
    """
    path, model_path = folder / CONFIG_FILE, folder / "config.json"
    config = read_if_exists(path)
    name = _tokenizer_class(config, path)
    if name is None:
        model = read_if_exists(model_path)
        model_type = model.get("model_type")
        name = _tokenizer_class(model, model_path) or _CLASS_OF_MODEL.get(str(model_type))
    is_general = name in _GENERAL_CLASSES
    if not is_general and name not in (("GPT2Tokenizer",) if two_files else _ASSUMED_NAMES):
        raise TokenizerError(
            f"{path}: transformers reads it as a {name}, which ignores a part of the vocabulary's "
            'files; to apply tokenizer.json, set "tokenizer_class": "PreTrainedTokenizerFast"'
        )
    if two_files and _DECODER not in config and read_if_exists(folder / _ADDED_FILE):
        raise TokenizerError(
            f"{folder / _ADDED_FILE} has ids without flags, which depend on the version of "
            "transformers; save the tokenizer with transformers 5"
        )
    class_name = "GPT2Tokenizer" if two_files else None if is_general else name
    return _parse_config(config, folder, class_name)


def read_if_exists(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no file. Raises TokenizerError if damaged."""
    if not os.path.lexists(path):  # a broken link is an error, not a missing file
        return {}
    return read_json_object(path, TokenizerError, max_bytes=limits().max_config_bytes)


def _tokenizer_class(entries: Mapping[str, Any], path: Path) -> str | None:
    name = entries.get("tokenizer_class")
    if not isinstance(name, str | None):
        raise TokenizerError(f"{path}: tokenizer_class must be a text, not {name!r:.60}")
    return name.removesuffix("Fast") if name else None


def _parse_config(config: dict[str, Any], folder: Path, class_name: str | None) -> TokenizerConfig:
    path = folder / CONFIG_FILE
    for key in _UNSUPPORTED:
        if _parse_flag(config, key, path):
            raise TokenizerError(
                f"{path}: gpt2np does not support {key}, which changes every text; remove it from "
                "the file"
            )
    older = {} if _DECODER in config else read_if_exists(folder / MAP_FILE)
    names = _parse_names(config, path) | _parse_names(older, folder / MAP_FILE)
    extra = _parse_extra(config, older, folder)
    assumed = dict.fromkeys(_ASSUMED_NAMES.get(class_name or "", ()), _END_OF_TEXT_TOKEN)
    mentioned = {token.content for token in (*names.values(), *extra)}
    names = {**dict.fromkeys(_NAMES, _NO_TOKEN), **assumed, **names}
    return TokenizerConfig(
        path,
        class_name,
        {key: token for key, token in names.items() if token.content},
        extra,
        END_OF_TEXT not in mentioned,
        _parse_decoder(config[_DECODER], path) if _DECODER in config else None,
    )


def _parse_flag(entries: Mapping[str, Any], key: str, path: Path) -> bool:
    value = entries.get(key)
    if not isinstance(value, bool | None):
        raise TokenizerError(f"{path}: {key} must be true or false, not {value!r:.60}")
    return bool(value)


def _parse_names(entries: Mapping[str, Any], path: Path) -> dict[str, AddedToken]:
    """Parse keys like "eos_token"; null gives an empty token."""
    return {key: parse_token(entries[key] or "", path, key) for key in _NAMES if key in entries}


def _parse_extra(
    config: Mapping[str, Any], older: Mapping[str, Any], folder: Path
) -> tuple[AddedToken, ...]:
    """Parse the list of extra special tokens."""
    given = [
        (folder / file, key, entries[key])
        for file, entries in ((CONFIG_FILE, config), (MAP_FILE, older))
        for key in _EXTRA_KEYS
        if entries.get(key)
    ]
    for path, key, value in given:
        if not isinstance(value, list) or value != given[0][2]:
            raise TokenizerError(f"{path}: {key} must be one list in all files, not {value!r:.60}")
    return tuple(parse_token(entry, path, key) for path, key, value in given for entry in value)


def _parse_decoder(entries: Any, path: Path) -> tuple[AddedToken, ...]:
    """Parse `added_tokens_decoder`, which maps ids to the text and flags of added tokens."""
    if not isinstance(entries, dict):
        raise TokenizerError(f"{path}: {_DECODER} must be an object, not {entries!r:.60}")
    tokens = []
    for key, entry in entries.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and isinstance(entry, dict)):
            raise TokenizerError(f"{path}: {_DECODER} has no id and token in {key!r:.60}")
        tokens.append(replace(parse_token(entry, path, _DECODER), id=int(key)))
    if len({token.content for token in tokens}) < len(tokens):
        raise TokenizerError(f"{path} gives one added token two ids")
    check_vocabulary({token.content: token.id for token in tokens}, path)
    return tuple(sorted(tokens, key=lambda token: token.id))


def parse_token(entry: Any, path: Path, key: str) -> AddedToken:
    """Create a token, without its id, from a special token's text or from a JSON object."""
    if isinstance(entry, str):
        entry = {"content": entry}
    if not isinstance(entry, dict) or not isinstance(content := entry.get("content"), str):
        raise TokenizerError(f"{path}: {key} must be a token, not {entry!r:.60}")
    check_vocabulary({content or "?": 0}, path)
    for flag in _STRIPS:
        if _parse_flag(entry, flag, path):
            raise TokenizerError(f"{path}: gpt2np does not support {flag} of {content!r:.60}")
    special = key not in (_DECODER, "added_tokens") or _parse_flag(entry, "special", path)
    return AddedToken(
        content,
        _NO_ID,
        special=special,
        # By default, transformers matches only special tokens in the original text.
        normalized=_parse_flag(entry, "normalized", path) if "normalized" in entry else not special,
        single_word=_parse_flag(entry, "single_word", path),
    )
