"""Normalization before pre-tokenization: surrogates, added tokens, Unicode NFC, prefix space.

First, a text is split at its added tokens, by the rules of Hugging Face's `tokenizers`
(added_vocabulary.rs). Then the text between added tokens is normalized. On request, each character
of the normalized text gets a span in the original text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpt2np.data.text import any_literal
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary

Spans = list[tuple[int, int]]
"""Origin of each character of a normalized text: (start, end) in the original text."""

AddedSpan = tuple[int, int, int | None]
"""(start, end, id) of an added token, in characters; for text between added tokens, id is None."""

# Unicode's white space. It excludes U+001C to U+001F, which str.strip would remove.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


@dataclass(frozen=True)
class NormalizedPart:
    """Part of a text: either an added token, or normalized text between added tokens."""

    text: str  # normalized text, or the text that matched an added token
    added_id: int | None  # id of the added token; None for normalized text
    spans: Spans  # origin of each character in the whole text; empty if not requested


def handle_surrogates(text: str, errors: str) -> str:
    """Replace, reject or keep the lone surrogates of `text`, as `errors` selects (see `Tokenizer`).

    Raises InvalidArgumentError if `text` is not a str, or `errors` is unknown or rejects a lone
    surrogate.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"the text is {short_repr(text)}; it must be a str")
    if errors not in ("replace", "strict", "surrogateescape"):
        raise InvalidArgumentError(
            f"errors = {errors!r}: expected 'replace', 'strict' or 'surrogateescape'"
        )
    try:
        text.encode("utf-8", errors if errors == "surrogateescape" else "strict")
    except UnicodeEncodeError as error:
        if errors == "replace":
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        raise InvalidArgumentError(
            f"character {error.start} of the text is the lone surrogate "
            f"U+{ord(text[error.start]):04X}, which is not Unicode text"
        ) from error
    return text


def extract_and_normalize(
    text: str, vocabulary: Vocabulary, allowed_special: frozenset[str], *, with_spans: bool = False
) -> Iterator[NormalizedPart]:
    """Split `text` at added tokens, and normalize the text between added tokens.

    `text` comes from `handle_surrogates`. Special tokens not in `allowed_special` are treated
    as plain text. The result equals that of `tokenizers`.
    """
    tokens = [
        token
        for token in vocabulary.added_tokens
        if not token.special or token.content in allowed_special
    ]
    in_original = [token for token in tokens if not token.normalized]
    in_normalized = [
        replace(token, content=unicodedata.normalize("NFC", token.content))
        if vocabulary.nfc
        else token
        for token in tokens
        if token.normalized
    ]
    for start, end, added_id in split_added(text, in_original):
        if added_id is not None:
            spans = _identity_spans(start, end) if with_spans else []
            yield NormalizedPart(text[start:end], added_id, spans)
        else:
            yield from _normalize(text[start:end], start, vocabulary, in_normalized, with_spans)


def _normalize(
    text: str, offset: int, vocabulary: Vocabulary, tokens: list[AddedToken], with_spans: bool
) -> Iterator[NormalizedPart]:
    spans: Spans = []
    if with_spans and vocabulary.nfc:
        text, spans = nfc_with_spans(text)
        spans = [(start + offset, end + offset) for start, end in spans]
    elif with_spans:
        spans = _identity_spans(offset, offset + len(text))
    elif vocabulary.nfc:
        text = unicodedata.normalize("NFC", text)
    for start, end, added_id in split_added(text, tokens):
        part, part_spans = text[start:end], spans[start:end]
        if added_id is None and vocabulary.add_prefix_space and not part.startswith(" "):
            part, part_spans = " " + part, part_spans[:1] + part_spans
        yield NormalizedPart(part, added_id, part_spans)


def _identity_spans(start: int, end: int) -> Spans:
    return [(position, position + 1) for position in range(start, end)]


def nfc_with_spans(text: str) -> tuple[str, Spans]:
    """Normalize `text` to NFC; return the result and the span of each character in `text`.

    As in `tokenizers` (normalizer.rs, `transform_range`), a composed character gets the span of its
    first component. A character added by decomposition gets the span of the preceding character.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, _identity_spans(0, len(text))
    normal, spans, position = [], [], 0
    for character, change in _compose(_decompose(text)):
        normal.append(character)
        if change > 0:
            spans.append((max(position - 1, 0), position))
        else:
            spans.append((position, position + 1))
            position += 1 - change
    return "".join(normal), spans


# (character, change in the number of characters): 1 if the character was added, -n if the character
# replaces n + 1 characters, otherwise 0
_Changes = list[tuple[str, int]]


def _decompose(text: str) -> _Changes:
    """Decompose `text` to NFD: (character, 1 if decomposition has added it, else 0), …"""
    changes: _Changes = []
    for character in text:
        parts = unicodedata.normalize("NFD", character)
        changes += [(part, int(n > 0)) for n, part in enumerate(parts)]
    start = 0
    for end in range(len(changes) + 1):
        if end == len(changes) or not unicodedata.combining(changes[end][0]):
            changes[start:end] = sorted(
                changes[start:end], key=lambda change: unicodedata.combining(change[0])
            )
            start = end + 1
    return changes


def _compose(changes: Sequence[tuple[str, int]]) -> _Changes:
    """Compose the result of `_decompose` to NFC: join base characters and combining marks."""
    composed: _Changes = []
    base, last_class = -1, 0  # index of the base in `composed`; combining class of the last mark
    for character, change in changes:
        combining_class = unicodedata.combining(character)
        blocked = base < len(composed) - 1 and last_class >= combining_class
        if base >= 0 and not blocked:
            pair = unicodedata.normalize("NFC", composed[base][0] + character)
            if len(pair) == 1:
                composed[base] = (pair, composed[base][1] + change - 1)
                continue
        composed.append((character, change))
        last_class = combining_class
        if combining_class == 0:
            base = len(composed) - 1
    return composed


def split_added(text: str, tokens: Collection[AddedToken]) -> Iterator[AddedSpan]:
    """Split `text` at the added tokens `tokens`; at each position, the longest match wins."""
    done = 0
    if tokens:
        by_content = {token.content: token for token in tokens}
        for match in any_literal(frozenset(by_content)).finditer(text):
            token, (start, end) = by_content[match[0]], match.span()
            if token.single_word and _is_within_word(text, start, end):
                continue
            if token.lstrip:
                while start > done and text[start - 1] in _WHITESPACE:
                    start -= 1
                start = max(start, done)
            while token.rstrip and end < len(text) and text[end] in _WHITESPACE:
                end += 1
            if done < start:
                yield done, start, None
            if start < end:
                yield start, end, token.id
                done = end
    if done < len(text):
        yield done, len(text), None


def find_first(text: str, contents: Collection[str]) -> str | None:
    """Return the string of `contents` that is first in `text` (the longest, if tied), or None."""
    match = any_literal(frozenset(contents)).search(text) if contents else None
    return match[0] if match else None


def _is_within_word(text: str, start: int, end: int) -> bool:
    import regex

    is_word = regex.compile(r"\w").match
    return bool((start and is_word(text[start - 1])) or (end < len(text) and is_word(text[end])))
