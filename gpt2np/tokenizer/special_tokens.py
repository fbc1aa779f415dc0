"""Reader of the special tokens files that `transformers` saves next to a vocabulary.

    tokenizer_config.json    special tokens map ("eos_token": …), settings and, since transformers
                             4.34, all added tokens with ids and flags (`added_tokens_decoder`)
    special_tokens_map.json  special tokens map, until transformers 4
    added_tokens.json        added token → id, until transformers 4

The precedence of the files and the resulting ids follow transformers 5.23; tests compare the ids.
If there is an `added_tokens_decoder`, the two older files are not read. Tokens are added one by
one: first tokens with an id, in order of the ids, then tokens of the special tokens map, then other
tokens. A token that the vocabulary contains keeps its id. Any other token gets the next free id.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpt2np.data.files import read_json_object
from gpt2np.errors import TokenizerError
from gpt2np.limits import limits
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, AddedToken, check_vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG_FILE, MAP_FILE, ADDED_FILE = FILE_NAMES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)

_MAP_KEYS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA, _OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_DECODER = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip")

_GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
_GENERAL_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")

_SPECIAL = {"special": True}
_NO_ID = -1  # id of a token that has none yet
_END_OF_TEXT_TOKEN = AddedToken(END_OF_TEXT, _NO_ID)

_TokenMap = dict[str, AddedToken | None]  # key such as "eos_token" → token; None: no such token


@dataclass(frozen=True)
class SpecialTokens:
    """Content of the special tokens files in a folder.

    `is_gpt2` tells whether transformers loads the folder as a GPT2Tokenizer. GPT2Tokenizer adds all
    tokens in order of their ids. A missing bos_token, eos_token or unk_token is `<|endoftext|>`.
    """

    declared: tuple[AddedToken, ...] = ()  # tokens with an id, in order of the ids
    source: Path = Path()  # the file that contains the `declared` tokens
    overrides_tokenizer_json: bool = False  # whether to ignore the added tokens of tokenizer.json
    token_map: Mapping[str, AddedToken | None] = field(default_factory=dict)  # without ids
    extra: tuple[AddedToken, ...] = ()  # tokens without an id that are not in `token_map`
    is_gpt2: bool = False
    add_prefix_space: bool = False  # used only if `is_gpt2`

    def resolve_added_tokens(
        self,
        vocab: Mapping[str, int],
        json_tokens: Iterable[AddedToken] = (),
        json_file: Path = Path(),
    ) -> tuple[AddedToken, ...]:
        """Return all added tokens with the ids that transformers gives them, sorted by id.

        `vocab` maps the vocabulary's tokens to ids. `json_tokens` are the added tokens in the
        tokenizer.json file `json_file`.

        Raises TokenizerError if transformers gives an added token an id that differs from the id in
        the files, or that belongs to a different token in `vocab`.
        """
        json_tokens = tuple(json_tokens)
        sources = {token.id: json_file for token in json_tokens}
        resolved: dict[str, AddedToken] = {}
        next_id = len(vocab)
        for token in self._in_order_of_addition(json_tokens):
            content = token.content
            known = resolved[content].id if content in resolved else vocab.get(content)
            token_id = next_id if known is None else known
            if token.id not in (_NO_ID, token_id):
                raise TokenizerError(
                    f"{sources.get(token.id, self.source)}: the added token {content!r:.60} "
                    f"has the id {token.id}, but transformers gives it {token_id}"
                )
            resolved[content] = replace(token, id=token_id)
            next_id = max(next_id, token_id + 1)
        if self._adds_unmentioned_end_of_text(resolved, vocab, json_tokens):
            del resolved[END_OF_TEXT]
        new = {token.id: token.content for token in resolved.values() if token.content not in vocab}
        if new and (shared := next((text for text, id in vocab.items() if id in new), None)):
            raise TokenizerError(
                f"{self.source}: transformers gives the added token {new[vocab[shared]]!r:.60} the "
                f"id {vocab[shared]} of {shared!r:.60}, because the vocabulary skips ids"
            )
        return tuple(sorted(resolved.values(), key=lambda token: token.id))

    def special_tokens_map(self, added: Iterable[AddedToken]) -> dict[str, str]:
        """Return a dictionary from key ("eos_token", …) to the text of a token in `added`."""
        contents = {token.content for token in added}
        return {
            key: token.content
            for key, token in self._full_token_map().items()
            if token is not None and token.content in contents
        }

    def _in_order_of_addition(self, json_tokens: tuple[AddedToken, ...]) -> list[AddedToken]:
        """Return the tokens in the order in which transformers adds them, without duplicates."""
        mapped = [token for token in self._full_token_map().values() if token is not None]
        by_id = {token.id: token for token in self.declared}
        if not self.overrides_tokenizer_json:
            by_id |= {token.id: token for token in json_tokens}
        first = {} if self.is_gpt2 else dict.fromkeys(json_tokens)
        mapped_contents = {token.content for token in mapped}
        for _, token in sorted(by_id.items()):
            special = token.special or token.content in mapped_contents
            first[replace(token, special=special)] = None
        contents = {"", *(token.content for token in first)}  # an empty text is no token
        extra = [
            replace(token, special=True) if token.content in mapped_contents else token
            for token in self.extra
        ]
        rest = [token for token in (*mapped, *extra) if token.content not in contents]
        return [*first, *dict.fromkeys(rest)]

    def _full_token_map(self) -> _TokenMap:
        assumed = dict.fromkeys(_MAP_KEYS[:3], _END_OF_TEXT_TOKEN) if self.is_gpt2 else {}
        empty: _TokenMap = dict.fromkeys(_MAP_KEYS)
        return {**empty, **assumed, **self.token_map}

    def _adds_unmentioned_end_of_text(
        self,
        resolved: Mapping[str, AddedToken],
        vocab: Mapping[str, int],
        json_tokens: tuple[AddedToken, ...],
    ) -> bool:
        """Tell whether END_OF_TEXT is only transformers' default, in none of the model's files."""
        if END_OF_TEXT in vocab or not resolved or [*resolved][-1] != END_OF_TEXT:
            return False
        mentioned = (*self.declared, *json_tokens, *self.token_map.values(), *self.extra)
        return all(token is None or token.content != END_OF_TEXT for token in mentioned)


def read_for_gpt2_files(folder: Path) -> SpecialTokens:
    """Read the special tokens files in a folder with `vocab.json` and `merges.txt`.

    Raises TokenizerError if a file is damaged, or needs a feature that gpt2np lacks.
    """
    config = read_if_exists(folder / CONFIG_FILE)
    name = _tokenizer_class(config, folder)
    if name not in (None, *_GPT2_CLASSES, *_GENERAL_CLASSES):
        raise TokenizerError(
            f"{folder / CONFIG_FILE}: tokenizer_class is {name!r}, but vocab.json and merges.txt "
            f"are read as {_GPT2_CLASSES[0]} reads them; save the tokenizer with its tokenizer.json"
        )
    for key in ("add_bos_token", "add_eos_token"):
        if config.get(key):
            raise TokenizerError(
                f"{folder / CONFIG_FILE}: {key} would add a token to every text; remove it from "
                "the file, and add the id yourself"
            )
    return _parse(config, folder, is_gpt2=True)


def read_for_tokenizer_json(folder: Path) -> SpecialTokens:
    """Read the special tokens files in a folder with a `tokenizer.json`.

    Raises TokenizerError if a file is damaged, or needs a feature that gpt2np lacks.
    """
    config = read_if_exists(folder / CONFIG_FILE)
    name = _tokenizer_class(config, folder)
    if name is None:
        model = read_if_exists(folder / "config.json")
        name = _tokenizer_class(model, folder, "config.json")
        if name is None and model.get("model_type") == "gpt2":
            name = _GPT2_CLASSES[0]
    return _parse(config, folder, is_gpt2=name in _GPT2_CLASSES)


def read_if_exists(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no file. Raises TokenizerError if damaged."""
    if not os.path.lexists(path):  # a broken link is an error, not a missing file
        return {}
    return read_json_object(path, TokenizerError, max_bytes=limits().max_config_bytes)


def _tokenizer_class(
    config: Mapping[str, Any], folder: Path, file: str = CONFIG_FILE
) -> str | None:
    name = config.get("tokenizer_class")
    if not isinstance(name, str | None):
        raise TokenizerError(f"{folder / file}: tokenizer_class must be a text, not {name!r:.60}")
    return name


def _parse(config: dict[str, Any], folder: Path, is_gpt2: bool) -> SpecialTokens:
    path = folder / CONFIG_FILE
    if _parse_flag(config, "split_special_tokens", path):
        raise TokenizerError(
            f"{path}: split_special_tokens turns special tokens into plain text; remove it from "
            "the file, and call encode with disallowed_special=()"
        )
    has_decoder = _DECODER in config
    older = {} if has_decoder else read_if_exists(folder / MAP_FILE)
    token_map = _parse_map(config, path) | _parse_map(older, folder / MAP_FILE)
    extra, named_extra = _parse_extra(config, older, folder)
    token_map |= named_extra
    if has_decoder:
        declared = _parse_decoder(config[_DECODER], path)
    else:
        declared = _read_added(folder / ADDED_FILE, _special_texts(config, older))
    return SpecialTokens(
        declared=declared,
        source=path if has_decoder else folder / ADDED_FILE,
        overrides_tokenizer_json=has_decoder,
        token_map=token_map,
        extra=extra,
        is_gpt2=is_gpt2,
        add_prefix_space=_parse_flag(config, "add_prefix_space", path),
    )


def _parse_flag(entries: Mapping[str, Any], key: str, path: Path) -> bool:
    value = entries.get(key)
    if not isinstance(value, bool | None):
        raise TokenizerError(f"{path}: {key} must be true or false, not {value!r:.60}")
    return bool(value)


def _parse_map(entries: Mapping[str, Any], path: Path) -> _TokenMap:
    """Parse the special tokens map: keys like "eos_token" (_MAP_KEYS) and like "image_token"."""
    token_map: _TokenMap = {}
    for key, value in entries.items():
        if value is None and key in _MAP_KEYS:
            token_map[key] = None
        elif key in _MAP_KEYS or (key.endswith("_token") and isinstance(value, str | dict)):
            token_map[key] = _parse_token(value, path, key, _SPECIAL)
    return token_map


def _parse_extra(
    config: Mapping[str, Any], older: Mapping[str, Any], folder: Path
) -> tuple[tuple[AddedToken, ...], _TokenMap]:
    """Parse extra special tokens: JSON lists to a tuple, JSON objects to a dictionary by name."""
    path, tokens = folder / CONFIG_FILE, config.get(_EXTRA) or config.get(_OLD_EXTRA)
    in_config = _EXTRA in config or _OLD_EXTRA in config
    named: _TokenMap = {}
    unnamed: list[AddedToken] = []
    for source, key, value in (
        (path, _EXTRA, tokens),
        (folder / MAP_FILE, _EXTRA, older.get(_EXTRA)),
        (folder / MAP_FILE, _OLD_EXTRA, None if in_config else older.get(_OLD_EXTRA)),
    ):
        flags = {} if source == path else _SPECIAL
        if isinstance(value, dict):
            named |= {
                name: _parse_token(token, source, key, _SPECIAL) for name, token in value.items()
            }
        elif isinstance(value, list):
            unnamed += [_parse_token(token, source, key, flags) for token in value]
        elif value is not None:
            raise TokenizerError(f"{source}: {key} must be a list, not {value!r:.60}")
    return tuple(unnamed), named


def _parse_decoder(entries: Any, path: Path) -> tuple[AddedToken, ...]:
    """Parse `added_tokens_decoder`, which maps ids to the text and flags of added tokens."""
    if not isinstance(entries, dict):
        raise TokenizerError(f"{path}: {_DECODER} must be an object, not {entries!r:.60}")
    tokens = []
    for key, entry in entries.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and isinstance(entry, dict)):
            raise TokenizerError(f"{path}: {_DECODER} has no id and token in {key!r:.60}")
        tokens.append(replace(_parse_token(entry, path, _DECODER, {}), id=int(key)))
    return _sort_by_id(tokens, path)


def _special_texts(config: Mapping[str, Any], older: Mapping[str, Any]) -> set[str]:
    """Return the special tokens that transformers knows when it reads `added_tokens.json`.

    `config` is tokenizer_config.json, `older` special_tokens_map.json. Transformers reads JSON
    objects in `config`, and `additional_special_tokens` in `older`, only after that.
    """
    texts_in_config = {key: value for key, value in config.items() if isinstance(value, str)}
    token_map = {**texts_in_config, **older}
    extra = [config.get(_EXTRA) or config.get(_OLD_EXTRA), older.get(_EXTRA)]
    extra_in_config, extra_in_map = (e if isinstance(e, list) else [] for e in extra)
    entries = [
        *(token_map.get(key) for key in _MAP_KEYS),
        *(entry for entry in extra_in_config if isinstance(entry, str)),
        *extra_in_map,
    ]
    texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    return {text for text in texts if isinstance(text, str)}


def _read_added(path: Path, special: set[str]) -> tuple[AddedToken, ...]:
    """Read `added_tokens.json`; `special` contains the texts of the special tokens."""
    entries = read_if_exists(path)
    check_vocabulary(entries, path)
    tokens = [
        AddedToken(text, token_id, special=text in special, normalized=text not in special)
        for text, token_id in entries.items()
    ]
    return _sort_by_id(tokens, path)


def _sort_by_id(tokens: list[AddedToken], path: Path) -> tuple[AddedToken, ...]:
    if len({token.content for token in tokens}) < len(tokens):
        raise TokenizerError(f"{path} gives one added token two ids")
    check_vocabulary({token.content: token.id for token in tokens}, path)
    return tuple(sorted(tokens, key=lambda token: token.id))


def _parse_token(entry: Any, path: Path, key: str, flags: Mapping[str, bool]) -> AddedToken:
    """Create a token from a text or a JSON object; `flags` overrides the object's flags."""
    if isinstance(entry, str):
        entry = {"content": entry, **_SPECIAL}
    if not isinstance(entry, dict) or not isinstance(content := entry.get("content"), str):
        raise TokenizerError(f"{path}: {key} must be a token, not {entry!r:.60}")
    check_vocabulary({content or "?": 0}, path)
    entry = {**entry, **flags}
    special = _parse_flag(entry, "special", path)
    return AddedToken(
        content,
        _NO_ID,
        special=special,
        # By default, transformers matches only special tokens in the original text.
        normalized=_parse_flag(entry, "normalized", path) if "normalized" in entry else not special,
        **{flag: _parse_flag(entry, flag, path) for flag in _FLAGS},
    )
