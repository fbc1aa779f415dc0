"""Documents as pieces: what merges never cross, and how often each occurs in a corpus.

Words repeat, so a corpus is counted before it is cut. With GPT-2's pattern a new piece begins
wherever a space follows a character that is no white space, and at the last space before one; the
pieces on either side are the same as without the other. So a document is cut at its spaces first,
which `str.split` does at the speed of C, and only the distinct words meet the regular expression.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import regex

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.split import GPT2_PATTERN, split

OPENAI_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's pattern as gpt-2/src/encoder.py spells it: the same pieces as GPT2_PATTERN."""

PATTERNS_THAT_CUT_AT_SPACES = frozenset({GPT2_PATTERN, OPENAI_PATTERN})

Splitter = Callable[[str], list[str]]

# A space within a run of white space that goes on after it: only there no piece begins. (The
# standard \s is a little wider than regex's, which only sends more documents the slower way.)
_space_within_white_space = re.compile(r" (?<=\s )(?:\s|\Z)").search

_CHARACTERS_AT_ONCE = 1 << 25  # so many are counted by words before the words are cut to pieces
_WORDS_KNOWN = 1 << 18


def splitter(pattern: str | None) -> Splitter:
    """The function that cuts a text into pieces, which join to it.

    Pieces are what `pattern` (a regular expression of the package `regex`) matches, and what lies
    between two matches (as `Split(…, "isolated")` in `tokenizers`); None leaves the text whole.

    Raises:
        InvalidArgumentError: `pattern` is no regular expression.
    """
    if pattern is None:
        return lambda text: [text] if text else []
    if pattern in PATTERNS_THAT_CUT_AT_SPACES:
        return split
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InvalidArgumentError(
            f"the pattern {pattern!r} is no regular expression: {error}"
        ) from error
    return lambda text: _matches_and_gaps(compiled, text)


def cut_at(separators: Collection[str], documents: Iterable[str]) -> Iterator[str]:
    """The documents, cut where one of `separators` stands; of several the longest counts."""
    if not separators:
        yield from documents
        return
    longest_first = sorted(separators, key=len, reverse=True)
    cut = regex.compile("|".join(map(regex.escape, longest_first))).split
    for document in documents:
        if any(separator in document for separator in separators):
            yield from cut(document)
        else:
            yield document


def count_pieces(documents: Iterable[str], pattern: str | None) -> Counter[str]:
    """How often each piece occurs; see `splitter`. Documents are read once, none is kept whole
    unless `pattern` is None."""
    cut = splitter(pattern)
    pieces: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    waiting = 0
    for document in documents:
        first, others = _words(document, pattern)
        texts[first] += 1
        words.update(others)
        waiting += len(document)
        if waiting > _CHARACTERS_AT_ONCE:
            _add_pieces(pieces, texts, words, cut)
            waiting = 0
    _add_pieces(pieces, texts, words, cut)
    return pieces


def token_counter(pattern: str | None, tokens_of: Mapping[str, int]) -> Callable[[str], int]:
    """The function that tells the number of tokens of a text from that of each of its pieces."""
    cut = splitter(pattern)
    known: dict[str, int] = {}

    def tokens_of_word(word: str) -> int:
        if len(known) > _WORDS_KNOWN:
            known.clear()
        known[word] = sum(map(tokens_of.__getitem__, cut(" " + word)))
        return known[word]

    def count(text: str) -> int:
        first, words = _words(text, pattern)
        total = sum(map(tokens_of.__getitem__, cut(first)))
        for word in words:
            tokens = known.get(word)
            total += tokens_of_word(word) if tokens is None else tokens
        return total

    return count


def _words(document: str, pattern: str | None) -> tuple[str, list[str]]:
    """The text up to the first space that begins a piece, and the words after such spaces."""
    if pattern not in PATTERNS_THAT_CUT_AT_SPACES or _space_within_white_space(document):
        return document, []
    words = document.split(" ")
    return words.pop(0), words


def _add_pieces(
    pieces: Counter[str], texts: Counter[str], words: Counter[str], cut: Splitter
) -> None:
    """Move what `texts` and `words` have counted to `pieces`."""
    alike: defaultdict[int, list[str]] = defaultdict(list)
    for word, count in words.items():
        if word == word.strip() != "":
            alike[count].append(word)
        else:
            texts[" " + word] += count
    for count, group in alike.items():  # in one go, as no white space but one space joins them
        for piece in cut(" " + " ".join(group)):
            pieces[piece] += count
    for text, count in texts.items():
        for piece in cut(text):
            pieces[piece] += count
    texts.clear()
    words.clear()


def _matches_and_gaps(pattern: regex.Pattern[str], text: str) -> list[str]:
    pieces = []
    done = 0
    for match in pattern.finditer(text):
        pieces += [text[done : match.start()], match.group()]
        done = match.end()
    return [piece for piece in [*pieces, text[done:]] if piece]
