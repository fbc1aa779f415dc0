"""The pieces of a corpus, which merges never cross, and how often each occurs.

Words repeat, so a corpus is counted before it is cut: what is counted are the chunks between spaces
(see `gpt2np.tokenizer.chunks`), and only the distinct ones meet the split pattern.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from gpt2np.tokenizer.added import any_of
from gpt2np.tokenizer.chunks import BEFORE_LINES, BEFORE_WORDS, blocks, chunks, text_of
from gpt2np.tokenizer.split import Split, splitter

_CHUNKS_AT_ONCE = 1 << 19  # distinct ones that are counted before they are cut to pieces


def split_by(pattern: str | None) -> Split:
    """The function that cuts a text into pieces; without a pattern the text is one.

    Raises:
        InvalidArgumentError: `pattern` is no regular expression.
    """
    return splitter(() if pattern is None else (pattern,))


def cut_at(separators: Collection[str], documents: Iterable[str]) -> Iterator[str]:
    """The documents, cut where one of `separators` stands; of several the longest counts."""
    cut = any_of(frozenset(separators)).split
    for document in documents:
        if any(separator in document for separator in separators):
            yield from cut(document)
        else:
            yield document


def count_pieces(documents: Iterable[str], pattern: str | None) -> Counter[str]:
    """How often each piece occurs. Memory follows the number of distinct ones."""
    cut = split_by(pattern)
    pieces: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    for document in documents:
        for block in blocks(document) if pattern in BEFORE_WORDS else (document,):
            found = _chunks(block, pattern)
            if found is None:
                pieces.update(cut(block))
            else:
                keys.update(found)
        if len(keys) > _CHUNKS_AT_ONCE:
            _add_pieces(pieces, keys, cut)
    _add_pieces(pieces, keys, cut)
    return pieces


def token_counter(pattern: str | None, tokens_of: Mapping[str, int]) -> Callable[[str], int]:
    """The function that tells the number of tokens of a text from that of each of its pieces."""
    cut = split_by(pattern)
    known: dict[str, int] = {}

    def tokens_in_chunk(key: str) -> int:
        if len(known) > _CHUNKS_AT_ONCE:
            known.clear()
        known[key] = sum(map(tokens_of.__getitem__, cut(text_of(key))))
        return known[key]

    def count(text: str) -> int:
        total = 0
        for block in blocks(text) if pattern in BEFORE_WORDS else (text,):
            keys = _chunks(block, pattern)
            if keys is None:
                total += sum(map(tokens_of.__getitem__, cut(block)))
            else:
                total += sum([known[key] if key in known else tokens_in_chunk(key) for key in keys])
        return total

    return count


def _chunks(block: str, pattern: str | None) -> list[str] | None:
    if pattern not in BEFORE_WORDS:
        return None
    return chunks(block, before_lines=pattern in BEFORE_LINES)


def _add_pieces(pieces: Counter[str], keys: Counter[str], cut: Split) -> None:
    """Move what `keys` has counted to `pieces`."""
    words: defaultdict[int, list[str]] = defaultdict(list)
    for key, count in keys.items():
        text = text_of(key)
        if text == " " + key.strip() != " ":
            words[count].append(text)
        else:
            for piece in cut(text):
                pieces[piece] += count
    for count, alike in words.items():  # in one go: a space before a word is always a border
        for piece in cut("".join(alike)):
            pieces[piece] += count
    keys.clear()
