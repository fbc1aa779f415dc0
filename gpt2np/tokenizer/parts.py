"""What a text goes through before it is split: added tokens are taken out, the rest normalized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.added import AddedToken, split_added
from gpt2np.tokenizer.normalize import Spans, nfc, nfc_with_spans
from gpt2np.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True)
class Part:
    """Part of a text.

    Attributes:
        text: what is to be split and merged, or what an added token took.
        added: the id of the added token, None for text.
        spans: for each character of `text` its (start, end) in the whole text, if asked for.
    """

    text: str
    added: int | None
    spans: Spans


def well_formed(text: str, errors: str) -> str:
    """`text` with its lone surrogates treated as `errors` says: see `Tokenizer`.

    Raises:
        InvalidArgumentError: `errors` does not admit them, or is unknown.
    """
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


def parts_of(
    text: str, vocabulary: Vocabulary, allowed_special: frozenset[str], *, with_spans: bool = False
) -> Iterator[Part]:
    """The parts of `text` in order, as `tokenizers` makes them (`extract_and_normalize`)."""
    tokens = [
        token for token in vocabulary.added if not token.special or token.content in allowed_special
    ]
    early = [token for token in tokens if not token.normalized]
    late = [_normalized(token, vocabulary) for token in tokens if token.normalized]
    for start, end, added in split_added(text, early):
        if added is not None:
            yield Part(text[start:end], added, _identity(start, end) if with_spans else [])
        else:
            yield from _normal_parts(text[start:end], start, vocabulary, late, with_spans)


def _normal_parts(
    text: str, offset: int, vocabulary: Vocabulary, late: list[AddedToken], with_spans: bool
) -> Iterator[Part]:
    spans: Spans = []
    if with_spans and vocabulary.nfc:
        text, spans = nfc_with_spans(text)
        spans = [(start + offset, end + offset) for start, end in spans]
    elif with_spans:
        spans = _identity(offset, offset + len(text))
    elif vocabulary.nfc:
        text = nfc(text)
    for start, end, added in split_added(text, late):
        part, origin = text[start:end], spans[start:end]
        if added is None and vocabulary.prefix_space and not part.startswith(" "):
            part, origin = " " + part, origin[:1] + origin
        yield Part(part, added, origin)


def _normalized(token: AddedToken, vocabulary: Vocabulary) -> AddedToken:
    return replace(token, content=nfc(token.content)) if vocabulary.nfc else token


def _identity(start: int, end: int) -> Spans:
    return [(at, at + 1) for at in range(start, end)]
