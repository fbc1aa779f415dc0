"""Before pre-tokenization: lone surrogates, added tokens, Unicode form NFC.

First, a text is split at its added tokens, by the rules of Hugging Face's `tokenizers`
(added_vocabulary.rs). Then the segments between added tokens are normalized.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from gpt2np.data.text import any_literal
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.tokenizer.unicode16 import is_word_character
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpt2np.data.options import Special  # slow to import

Segment = tuple[str, int | None]
"""An added token, as its text and id, or the normalized text between added tokens and None."""


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate of `text` by U+FFFD; raise InvalidArgumentError if not a str."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"the text is {short_repr(text)}; it must be a str")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def split_and_normalize(
    text: str, vocabulary: Vocabulary, allowed_special: frozenset[str]
) -> Iterator[Segment]:
    """Split `text` at added tokens, and normalize the segments between added tokens.

    `text` comes from `replace_surrogates`. Special tokens not in `allowed_special` are treated
    as plain text. The result equals that of `tokenizers`.
    """
    tokens = [
        token
        for token in vocabulary.added_tokens
        if not token.special or token.content in allowed_special
    ]
    in_original = [token for token in tokens if not token.normalized]
    in_normalized = [
        replace(token, content=_normalize(token.content, vocabulary))
        for token in tokens
        if token.normalized
    ]
    for segment, added_id in split_added(text, in_original):
        if added_id is not None:
            yield segment, added_id
        else:
            yield from split_added(_normalize(segment, vocabulary), in_normalized)


def _normalize(text: str, vocabulary: Vocabulary) -> str:
    return unicodedata.normalize("NFC", text) if vocabulary.nfc else text


def split_added(text: str, tokens: Collection[AddedToken]) -> Iterator[Segment]:
    """Split `text` at the added tokens `tokens`; at each position, the longest match wins."""
    done = 0
    if tokens:
        by_content = {token.content: token for token in tokens}
        for match in any_literal(frozenset(by_content)).finditer(text):
            token, (start, end) = by_content[match[0]], match.span()
            neighbors = text[max(start - 1, 0) : start] + text[end : end + 1]
            if token.single_word and any(map(is_word_character, neighbors)):
                continue
            if done < start:
                yield text[done:start], None
            yield token.content, token.id
            done = end
    if done < len(text):
        yield text[done:], None


def find_first(text: str, contents: Collection[str]) -> str | None:
    """Return the string of `contents` that is first in `text` (the longest, if tied), or None."""
    match = any_literal(frozenset(contents)).search(text) if contents else None
    return match[0] if match else None


def check_special(text: str, special_tokens: Collection[str], special: Special | None) -> None:
    """Raise InvalidArgumentError if `special` is "error" and the text has a special token."""
    if special == "error" and (found := find_first(text, special_tokens)):
        raise InvalidArgumentError(
            f"`special` is 'error', and the text has the special token {found}; 'allow' encodes it "
            "as that token, 'text' as plain text",
            param="special",
        )


def allowed_special(special: Special | None) -> Any:
    """Return the argument `allowed_special` of an encoder; None, if `special` is not given."""
    return None if special is None else "all" if special == "allow" else ()
