"""Pieces of a text that goes on: how the pre-tokenizer can split it, whatever text follows.

Where pieces begin can depend on the text that follows. After "a" and two spaces, a letter takes the
second space into its own piece, but a third space joins the two. And "'l" is two pieces, but "'ll"
is one. So the pre-tokenizer splits the text with each of `_FOLLOWING` behind the text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from gpt2np.data.text import is_unicode_text
from gpt2np.tokenizer.pre_tokenizer import KNOWN_PATTERNS, make_pre_tokenizer, mask_newer_characters

# The known patterns treat characters of one kind alike, except for letters after an apostrophe.
_KINDS = {
    "a": r"\p{Ll}",
    "A": r"[\p{Lu}\p{Lt}]",
    "\u65e5": r"[\p{Lm}\p{Lo}]",
    "\u0301": r"\p{M}",
    "1": r"\p{N}",
    "\n": r"[\r\n]",
    " ": " ",
    "\t": r"[^\S\r\n ]",
    "/": "/",
    "'": "'",
    "!": r"[^\p{L}\p{M}\p{N}\s/']",
}
_FOLLOWING = ("", *_KINDS, *"sle")  # an s, l or e can complete 's, 'll or 're
_ONLY_FOLLOWING = ("l", "e")  # nothing else may follow 'l, or 'r and 'v
_UNDECIDED = 4  # pieces; the known patterns have decided all earlier pieces, whatever follows

Split = tuple[tuple[bytes, ...], bytes]
"""The pieces before the last piece, and the beginning of the last piece."""


class PieceBeginnings:
    """Tells how a text can begin a longer text, for the patterns of one pre-tokenizer.

    Patterns outside `KNOWN_PATTERNS` take longer: no shortcut applies to them. Texts are bytes, and
    may begin or end within a character.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._is_known = set(patterns) <= KNOWN_PATTERNS
        self._pre_tokenize = make_pre_tokenizer(patterns)
        self._rest_of_piece = lru_cache(maxsize=4096)(self._find_rest_of_piece)

    def splits(self, text: bytes) -> list[Split]:
        """Return all ways in which the pre-tokenizer splits a text that goes on."""
        pieces = [_encode(piece) for piece in self._pre_tokenize(decode(text))]
        n_decided = max(0, len(pieces) - _UNDECIDED) if self._is_known else 0
        decided, rest = b"".join(pieces[:n_decided]), b"".join(pieces[n_decided:])
        splits: set[Split] = set()
        for beginning in _completions(rest):
            for following in _FOLLOWING:
                closed, start = [decided] if decided else [], 0
                for piece in map(_encode, self._pre_tokenize(beginning + following)):
                    if start + len(piece) >= len(rest):
                        break
                    closed.append(piece)
                    start += len(piece)
                splits.add((tuple(closed), rest[start:]))
        return sorted(splits)

    def continues(
        self, before: bytes, head: bytes, tail: bytes
    ) -> Callable[[bytes, str], str | None]:
        """Return a test for the tokens with which a piece can go on after `head`.

        `before` is the piece before, and the tokens begin with `tail`. The test takes a token's
        bytes and its `shape`; tokens of one shape share an answer. It returns what must follow in
        the piece, such as "e" after "'r"; None if the piece can't go on with the token.
        """
        is_unicode = _is_unicode(head + tail)
        shape_before, shape_head = shape(before), shape(head)
        if (head + tail).startswith(b" "):  # no letter follows an apostrophe in `before`
            shape_before = shape_before or decode(before)
        has_shape = self._is_known and (shape_before or not before) and (shape_head or not head)

        def rest_after(token: bytes, token_shape: str) -> str | None:
            if has_shape and token_shape:
                return self._rest_of_piece(shape_before, shape_head + token_shape)
            if is_unicode and not _is_unicode(head + token):
                return None
            texts = _completions(head + token)
            rests = (self._find_rest_of_piece(decode(before), text) for text in texts)
            return next((rest for rest in rests if rest is not None), None)

        return rest_after

    def _find_rest_of_piece(self, before: str, text: str) -> str | None:
        closed = [before] if before else []
        for following in _FOLLOWING:
            pieces = self._pre_tokenize(before + text + following)
            opened = pieces[len(closed) :]
            if pieces[: len(closed)] == closed and opened and len(opened[0]) >= len(text):
                return following if following in _ONLY_FOLLOWING else ""
        return None


def decode(text: bytes) -> str:
    """Decode UTF-8; other bytes become lone surrogates, as in `Tokenizer`."""
    return text.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def shape(text: bytes) -> str:
    """Replace each character by one of its kind, and long runs by short ones.

    Returns "" for a text that the known patterns may not split like its shape.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return ""
    if "'" in decoded:
        return ""
    kinds = decoded.translate(_kinds)
    return _LONG_RUN.sub(r"\1", kinds) if len(kinds) > 4 else kinds


_LONG_RUN = re.compile(r"((.)\2{3})\2+", re.DOTALL)  # a piece has at most three digits


class _Kinds(dict[int, str]):
    """A character of the same kind for each code point; filled as needed."""

    def __missing__(self, code: int) -> str:
        character = mask_newer_characters(chr(code))
        self[code] = next(kind for kind, is_kind in _kind_tests() if is_kind(character))
        return self[code]


_kinds = _Kinds()


@cache
def _kind_tests() -> list[tuple[str, Callable[[str], Any]]]:
    import regex

    return [(kind, regex.compile(pattern).search) for kind, pattern in _KINDS.items()]


def _is_unicode(text: bytes) -> bool:
    """Return whether UTF-8 can begin with these bytes; also within a character."""
    return is_unicode_text(_completions(text)[0])


def _completions(text: bytes) -> list[str]:
    """Decode a text; complete a character that is incomplete at the end by one of each kind."""
    decoded, n_decoded = codecs.utf_8_decode(text, "surrogateescape", False)
    if n_decoded == len(text):
        return [decoded]
    return [decoded + character for character in _characters(text[n_decoded:])]


@lru_cache(maxsize=256)
def _characters(beginning: bytes) -> Sequence[str]:
    """Return a character of each kind whose UTF-8 begins with these bytes, if there is one."""
    lead = beginning[0]
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    code = lead & (0x7F >> size)
    for byte in beginning[1:]:
        code = code << 6 | byte & 0x3F
    shift = 6 * (size - len(beginning))
    first = max(code << shift, (0, 0, 0x80, 0x800, 0x10000)[size])
    codes = range(first, min((code + 1) << shift, 0x110000))
    characters = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    found = (is_kind(mask_newer_characters(characters)) for _, is_kind in _kind_tests())
    return [characters[match.start()] for match in found if match]
