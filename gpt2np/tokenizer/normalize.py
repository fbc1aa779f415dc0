"""Unicode's normalization form C, with where each character came from."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

Spans = list[tuple[int, int]]
"""For each character of a text the (start, end) of its origin."""


def nfc(text: str) -> str:
    """`text` with every character composed that can be: "e" + U+0301 → "é"."""
    return unicodedata.normalize("NFC", text)


def nfc_with_spans(text: str) -> tuple[str, Spans]:
    """`nfc(text)`, and for each of its characters the span in `text` that it came from.

    A composed character spans the first of the characters that made it, and one that decomposition
    brought forth the last character before it: so `tokenizers` aligns them (normalizer.rs,
    `transform_range`).
    """
    if unicodedata.is_normalized("NFC", text):
        return text, [(at, at + 1) for at in range(len(text))]
    normal, spans, at = [], [], 0
    for character, change in _compose(_decompose(text)):
        normal.append(character)
        if change > 0:
            spans.append((max(at - 1, 0), at))
        else:
            spans.append((at, at + 1))
            at += 1 - change
    return "".join(normal), spans


_Changes = list[tuple[str, int]]  # characters, each with how many more there are for it than before


def _decompose(text: str) -> _Changes:
    """The characters of form D; marks are in canonical order, and keep their change."""
    changes: _Changes = []
    for character in text:
        for n, part in enumerate(unicodedata.normalize("NFD", character)):
            changes.append((part, int(n > 0)))
    start = 0
    for end in range(len(changes) + 1):
        if end == len(changes) or not unicodedata.combining(changes[end][0]):
            changes[start:end] = sorted(changes[start:end], key=_combining_class)
            start = end + 1
    return changes


def _combining_class(change: tuple[str, int]) -> int:
    return unicodedata.combining(change[0])


def _compose(changes: Sequence[tuple[str, int]]) -> _Changes:
    """Compose each base character with the marks after it that are not blocked by another."""
    composed: _Changes = []
    base, last_class = -1, 0  # place of the base in `composed`; class of the last mark kept
    for character, change in changes:
        own_class = unicodedata.combining(character)
        blocked = base < len(composed) - 1 and last_class >= own_class
        if base >= 0 and not blocked:
            pair = unicodedata.normalize("NFC", composed[base][0] + character)
            if len(pair) == 1:
                composed[base] = (pair, composed[base][1] + change - 1)
                continue
        composed.append((character, change))
        last_class = own_class
        if own_class == 0:
            base = len(composed) - 1
    return composed
