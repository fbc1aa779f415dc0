"""The small files beside a vocabulary, in which `transformers` keeps what it adds to it.

    tokenizer_config.json    roles ("eos_token": …), settings and, since transformers 4.34, every
                             added token with its id and flags (`added_tokens_decoder`)
    special_tokens_map.json  the roles, until version 4
    added_tokens.json        added token → id, until version 4

Which of them counts, and which ids come of them, was measured on transformers 5.23, and tests
compare with it. Where there is an `added_tokens_decoder`, the two older files are not read. Tokens
are added one by one: those with an id in its order, then those of the roles, then the others. A
token that the vocabulary has keeps its id, any other gets the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.added import AddedToken
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, check_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG, ROLES_MAP, ADDED = FILE_NAMES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)

_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA, _OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_DECLARED = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip")

_GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
_GENERAL_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")

_SPECIAL = {"special": True}
_NO_ID = -1  # of a token before it has one


@dataclass(frozen=True)
class SpecialTokens:
    """What the small files of a folder say.

    Attributes:
        declared: the tokens with an id, by id.
        source: the file that declares them.
        complete: whether those that tokenizer.json declares don't count.
        roles: key → token, without an id; None for a role that nothing has.
        extra: further tokens, without an id.
        gpt2: whether transformers takes its GPT2Tokenizer, which makes every added token anew, and
            has `<|endoftext|>` in the roles that no file names.
        prefix_space: what the GPT2Tokenizer is told.
    """

    declared: tuple[AddedToken, ...] = ()
    source: Path = Path()
    complete: bool = False
    roles: Mapping[str, AddedToken | None] = field(default_factory=dict)
    extra: tuple[AddedToken, ...] = ()
    gpt2: bool = False
    prefix_space: bool = False

    def added_to(
        self, vocab: Mapping[str, int], own: Iterable[AddedToken] = (), own_source: Path = Path()
    ) -> tuple[AddedToken, ...]:
        """The added tokens by id, as transformers adds them.

        Args:
            vocab: token → id, everything that the vocabulary has before tokens are added to it.
            own: the added tokens of tokenizer.json.
            own_source: that file.

        Raises:
            TokenizerError: transformers would give a token another id than the files do.
        """
        own = tuple(own)
        sources = {token.id: own_source for token in own}
        found: dict[str, AddedToken] = {}
        free = len(vocab)
        for token in self._in_order(own):
            known = found[token.content].id if token.content in found else vocab.get(token.content)
            number = free if known is None else known
            if token.id not in (_NO_ID, number):
                raise TokenizerError(
                    f"{sources.get(token.id, self.source)}: the added token {token.content!r:.60} "
                    f"has the id {token.id}, but transformers gives it {number}"
                )
            found[token.content] = replace(token, id=number)
            free = max(free, number + 1)
        if self._is_out_of_reach(END_OF_TEXT, found, vocab, own):
            del found[END_OF_TEXT]
        new = {token.id: token.content for token in found.values() if token.content not in vocab}
        if new and (shared := next((text for text, id in vocab.items() if id in new), None)):
            raise TokenizerError(
                f"{self.source}: transformers gives the added token {new[vocab[shared]]!r:.60} the "
                f"id {vocab[shared]}, which {shared!r:.60} has, because ids are left out"
            )
        return tuple(sorted(found.values(), key=lambda token: token.id))

    def roles_of(self, added: Iterable[AddedToken]) -> dict[str, str]:
        """Key → text of the token in that role, for the roles that one of `added` has."""
        contents = {token.content for token in added}
        return {
            key: token.content
            for key, token in self._all_roles().items()
            if token is not None and token.content in contents
        }

    def _in_order(self, own: tuple[AddedToken, ...]) -> list[AddedToken]:
        """The tokens in the order in which transformers adds them; the last of a text counts."""
        roles = [token for token in self._all_roles().values() if token is not None]
        by_id = {token.id: token for token in self.declared}
        if not self.complete:
            by_id |= {token.id: token for token in own}
        first = {} if self.gpt2 else dict.fromkeys(own)
        in_role = {token.content for token in roles}
        for _, token in sorted(by_id.items()):
            first[replace(token, special=token.special or token.content in in_role)] = None
        contents = {"", *(token.content for token in first)}  # an empty one is no token
        extra = [
            replace(each, special=True) if each.content in in_role else each for each in self.extra
        ]
        rest = [token for token in (*roles, *extra) if token.content not in contents]
        return [*first, *dict.fromkeys(rest)]

    def _all_roles(self) -> dict[str, AddedToken | None]:
        assumed = dict.fromkeys(_ROLES[:3], _token_of(END_OF_TEXT)) if self.gpt2 else {}
        roles: dict[str, AddedToken | None] = dict.fromkeys(_ROLES)
        return {**roles, **assumed, **self.roles}

    def _is_out_of_reach(
        self,
        content: str,
        found: Mapping[str, AddedToken],
        vocab: Mapping[str, int],
        own: tuple[AddedToken, ...],
    ) -> bool:
        """Whether a token was only assumed, and has an id that no model has a row for.

        transformers adds it all the same; here the vocabulary would then not fit the model.
        """
        if content in vocab or content not in found or [*found][-1] != content:
            return False
        named = (*self.declared, *own, *self.roles.values(), *self.extra)
        return all(token is None or token.content != content for token in named)


def read_for_gpt2_files(folder: Path) -> SpecialTokens:
    """What the small files say of the vocabulary in `vocab.json` and `merges.txt`.

    Raises:
        TokenizerError: a file is damaged, or asks for what gpt2np doesn't do.
    """
    config = _read(folder / CONFIG)
    name = _class_name(config, folder)
    if name not in (None, *_GPT2_CLASSES, *_GENERAL_CLASSES):
        raise TokenizerError(
            f"{folder / CONFIG}: tokenizer_class is {name!r}, but vocab.json and merges.txt are "
            f"read as {_GPT2_CLASSES[0]} reads them; save the tokenizer with its tokenizer.json"
        )
    for key in ("add_bos_token", "add_eos_token"):
        if config.get(key):
            raise TokenizerError(
                f"{folder / CONFIG}: {key} would add a token to every text; take it out of the "
                "file, and put the id there yourself"
            )
    return _parse(config, folder, gpt2=True)


def read_for_tokenizer_json(folder: Path) -> SpecialTokens:
    """What the small files say of the vocabulary in `tokenizer.json`.

    Raises:
        TokenizerError: a file is damaged, or asks for what gpt2np doesn't do.
    """
    config = _read(folder / CONFIG)
    name = _class_name(config, folder)
    if name is None:
        model = _read(folder / "config.json")
        name = _class_name(model, folder, "config.json")
        return _parse(config, folder, gpt2=name in _GPT2_CLASSES or _is_gpt2(name, model))
    return _parse(config, folder, gpt2=name in _GPT2_CLASSES)


def _is_gpt2(class_name: str | None, model: Mapping[str, Any]) -> bool:
    return class_name is None and model.get("model_type") == "gpt2"


def _read(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):  # a link to nothing is not as if there were none
        return {}
    return read_json_object(path, TokenizerError, max_bytes=SMALL_JSON_BYTES)


def _class_name(config: Mapping[str, Any], folder: Path, file: str = CONFIG) -> str | None:
    name = config.get("tokenizer_class")
    if not isinstance(name, str | None):
        raise TokenizerError(f"{folder / file}: tokenizer_class must be a text, not {name!r:.60}")
    return name


def _parse(config: dict[str, Any], folder: Path, gpt2: bool) -> SpecialTokens:
    path = folder / CONFIG
    if _flag(config, "split_special_tokens", path):
        raise TokenizerError(
            f"{path}: split_special_tokens makes special tokens plain text; take it out of the "
            "file, and say so to encode with disallowed_special=()"
        )
    complete = _DECLARED in config
    older = {} if complete else _read(folder / ROLES_MAP)
    roles = _roles(config, path) | _roles(older, folder / ROLES_MAP)
    extra, more_roles = _extra(config, older, folder)
    roles |= more_roles
    if complete:
        declared = _declared(config[_DECLARED], path)
    else:
        declared = _added(folder / ADDED, _known_as_special(config, older))
    return SpecialTokens(
        declared=declared,
        source=path if complete else folder / ADDED,
        complete=complete,
        roles=roles,
        extra=extra,
        gpt2=gpt2,
        prefix_space=_flag(config, "add_prefix_space", path),
    )


def _flag(entries: Mapping[str, Any], key: str, path: Path) -> bool:
    value = entries.get(key)
    if not isinstance(value, bool | None):
        raise TokenizerError(f"{path}: {key} must be true or false, not {value!r:.60}")
    return bool(value)


def _roles(entries: Mapping[str, Any], path: Path) -> dict[str, AddedToken | None]:
    """The roles among `entries`; others than _ROLES may be there, such as "image_token"."""
    roles: dict[str, AddedToken | None] = {}
    for key, value in entries.items():
        if value is None and key in _ROLES:
            roles[key] = None
        elif key in _ROLES or (key.endswith("_token") and isinstance(value, str | dict)):
            roles[key] = _token(value, path, key, _SPECIAL)
    return roles


def _extra(
    config: Mapping[str, Any], older: Mapping[str, Any], folder: Path
) -> tuple[tuple[AddedToken, ...], dict[str, AddedToken | None]]:
    """The tokens without a role, and those for which the newer files name one of their own."""
    path, tokens = folder / CONFIG, config.get(_EXTRA) or config.get(_OLD_EXTRA)
    unnamed = _EXTRA not in config and _OLD_EXTRA not in config
    roles: dict[str, AddedToken | None] = {}
    extra: list[AddedToken] = []
    for source, key, value in (
        (path, _EXTRA, tokens),
        (folder / ROLES_MAP, _EXTRA, older.get(_EXTRA)),
        (folder / ROLES_MAP, _OLD_EXTRA, older.get(_OLD_EXTRA) if unnamed else None),
    ):
        flags = {} if source == path else _SPECIAL
        if isinstance(value, dict):
            roles |= {name: _token(each, source, key, _SPECIAL) for name, each in value.items()}
        elif isinstance(value, list):
            extra += [_token(each, source, key, flags) for each in value]
        elif value is not None:
            raise TokenizerError(f"{source}: {key} must be a list, not {value!r:.60}")
    return tuple(extra), roles


def _declared(entries: Any, path: Path) -> tuple[AddedToken, ...]:
    """The tokens of `added_tokens_decoder`: id → flags and content."""
    if not isinstance(entries, dict):
        raise TokenizerError(f"{path}: {_DECLARED} must be an object, not {entries!r:.60}")
    tokens = []
    for key, entry in entries.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and isinstance(entry, dict)):
            raise TokenizerError(f"{path}: {_DECLARED} has no id and token in {key!r:.60}")
        tokens.append(replace(_token(entry, path, _DECLARED, {}), id=int(key)))
    return _checked(tokens, path)


def _known_as_special(config: Mapping[str, Any], older: Mapping[str, Any]) -> set[str]:
    """The texts that make a token of `added_tokens.json` special.

    transformers reads that file before it understands the objects in tokenizer_config.json and the
    old list of extra tokens in special_tokens_map.json; their tokens are found, but not special.
    """
    texts_in_config = {key: value for key, value in config.items() if isinstance(value, str)}
    roles = {**texts_in_config, **older}
    in_config = config.get(_EXTRA) or config.get(_OLD_EXTRA) or []
    entries = [
        *(roles.get(key) for key in _ROLES),
        *(entry for entry in in_config if isinstance(entry, str)),
        *(older.get(_EXTRA) or []),
    ]
    texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    return {text for text in texts if isinstance(text, str)}


def _added(path: Path, special: set[str]) -> tuple[AddedToken, ...]:
    """The tokens of `added_tokens.json`; `special` are the texts of those that are."""
    entries = _read(path)
    check_ids(entries, path)
    tokens = [
        AddedToken(text, number, special=text in special, normalized=text not in special)
        for text, number in entries.items()
    ]
    return _checked(tokens, path)


def _checked(tokens: list[AddedToken], path: Path) -> tuple[AddedToken, ...]:
    if len({token.content for token in tokens}) < len(tokens):
        raise TokenizerError(f"{path} gives one added token two ids")
    check_ids({token.content: token.id for token in tokens}, path)
    return tuple(sorted(tokens, key=lambda token: token.id))


def _token(entry: Any, path: Path, key: str, flags: Mapping[str, bool]) -> AddedToken:
    """A token from its text, or from an object with its `content` and flags; `flags` prevail."""
    if isinstance(entry, str):
        entry = {"content": entry, **_SPECIAL}
    if not isinstance(entry, dict) or not isinstance(content := entry.get("content"), str):
        raise TokenizerError(f"{path}: {key} must be a token, not {entry!r:.60}")
    check_ids({content or "?": 0}, path)
    entry = {**entry, **flags}
    special = _flag(entry, "special", path)
    return AddedToken(
        content,
        _NO_ID,
        special=special,
        # What transformers takes where it isn't said.
        normalized=_flag(entry, "normalized", path) if "normalized" in entry else not special,
        **{flag: _flag(entry, flag, path) for flag in _FLAGS},
    )


def _token_of(content: str) -> AddedToken:
    return AddedToken(content, _NO_ID)
