"""Training a tokenizer: documents in, a vocabulary out, equal to that of `tokenizers`' BpeTrainer.

Three steps: count the pieces of all documents (`pieces`), write each different piece once as
symbols of the alphabet, and merge the most frequent pairs (`learn`).
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.added import AddedToken
from gpt2np.tokenizer.alphabet import BYTE_OF_CHARACTER
from gpt2np.tokenizer.merge import merge_pairs
from gpt2np.tokenizer.split import GPT2_PATTERN
from gpt2np.tokenizer.training.learn import SEPARATOR, Limits, Pieces, Progress, learn_merges
from gpt2np.tokenizer.training.pieces import count_pieces, cut_at, split_by
from gpt2np.tokenizer.training.symbols import (
    CODE_POINTS,
    SEPARATOR_CODES,
    Alphabet,
    Codes,
    codes_of,
    frequent_characters,
    weights_of,
)
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, SPACE, Vocabulary, is_text

UNKNOWN = "<unk>"
"""With the alphabet of characters, the special token for what is not among them."""

_OUTSIDE = -3  # in the place of a character outside the alphabet
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class TrainingOptions:
    """What vocabulary to learn; every option means what it means in `tokenizers`' BpeTrainer.

    Attributes:
        vocab_size: the number of tokens, special ones and alphabet included. It may become less
            where there is nothing left to merge, and more if the alphabet alone is larger.
        min_frequency: a pair that occurs less often is not merged; 0 and 1 are the same.
        max_token_length: merged tokens of three and more characters (bytes, in the byte alphabet)
            stay *shorter* than this; pairs of the alphabet are always allowed.
        special_tokens: they get the first ids. Where one stands in a text, the text is cut.
        pattern: the regular expression whose matches are the pieces that no token crosses
            (see `gpt2np.tokenizer.split.splitter`); None: a document is one piece.
        alphabet: "bytes": all 256 bytes, as GPT-2's stand-in characters; "characters": the
            characters of the text.
        limit_alphabet: keep only so many characters, the most frequent (of equally frequent ones
            the smaller code point; `tokenizers` leaves that to chance). The others vanish, and
            what stood around them become neighbours.

    Raises:
        InvalidArgumentError: an option is out of its range, or two contradict each other.
    """

    vocab_size: int = 30_000
    min_frequency: int = 0
    max_token_length: int | None = None
    special_tokens: tuple[str, ...] = (END_OF_TEXT,)
    pattern: str | None = GPT2_PATTERN
    alphabet: Alphabet = "bytes"
    limit_alphabet: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_token_length", "limit_alphabet"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} is {value}; it must be at least 1")
        if self.min_frequency < 0:
            raise InvalidArgumentError(f"min_frequency is {self.min_frequency}; at least 0")
        if self.alphabet not in ("bytes", "characters"):
            raise InvalidArgumentError(f"alphabet is {self.alphabet!r}; bytes or characters")
        if wrong := [token for token in self.special_tokens if not token or not is_text(token)]:
            raise InvalidArgumentError(
                f"the special token {wrong[0]!a} is empty or no Unicode text"
            )
        if self.alphabet == "bytes":
            self._check_bytes()
        if self.pattern == "":
            raise InvalidArgumentError("the pattern is empty; None means that there is none")
        split_by(self.pattern)

    def _check_bytes(self) -> None:
        if self.limit_alphabet is not None:
            raise InvalidArgumentError(
                "limit_alphabet is for the alphabet of characters; all 256 bytes are always kept"
            )
        if clash := BYTE_OF_CHARACTER.keys() & set(self.special_tokens):
            raise InvalidArgumentError(
                f"special token {min(clash)!r} is a character of the byte alphabet too; "
                "take a longer one"
            )
        least = 256 + len(set(self.special_tokens))
        if self.vocab_size < least:
            raise InvalidArgumentError(
                f"vocab_size is {self.vocab_size}; the 256 bytes and the special tokens need "
                f"{least}"
            )


@dataclass(frozen=True)
class TrainedVocabulary:
    """What was learned.

    Attributes:
        options: what was asked for.
        tokens: by id; in the byte alphabet as stand-in characters ("Ġthe" for " the").
        merges: by rank.
        piece_counts: each piece, and how often it occurs.
        piece_tokens: each piece, and how many tokens it is now; a character outside a limited
            alphabet is one.
        unknown: how many characters of the corpus are outside a limited alphabet.
    """

    options: TrainingOptions
    tokens: list[str]
    merges: list[tuple[str, str]]
    piece_counts: dict[str, int]
    piece_tokens: dict[str, int]
    unknown: int = 0

    @property
    def special_ids(self) -> dict[str, int]:
        """Text of a special token → its id."""
        return {token: n for n, token in enumerate(dict.fromkeys(self.options.special_tokens))}

    @property
    def vocabulary(self) -> Vocabulary:
        """What a `Tokenizer` needs, and what is written to files."""
        in_bytes, pattern = self.options.alphabet == "bytes", self.options.pattern
        merges = [_spelled(left, right, sep=" ") for left, right in self.merges]
        made = {merge.replace(" ", "") for merge in merges}
        ids = {_spelled(token): number for number, token in enumerate(self.tokens)}
        for token in self.special_ids.keys() - made:
            del ids[_spelled(token)]
        return Vocabulary(
            ids,
            {merge: rank for rank, merge in enumerate(merges)},
            tuple(AddedToken(token, number) for token, number in self.special_ids.items()),
            () if pattern is None else (pattern,),
            byte_level=in_bytes,
            unknown=UNKNOWN if not in_bytes and UNKNOWN in self.special_ids else None,
        )


def _spelled(*tokens: str, sep: str = "") -> str:
    return sep.join([token.replace(" ", SPACE) for token in tokens])


def train(
    documents: Iterable[str], options: TrainingOptions, progress: Progress | None = None
) -> TrainedVocabulary:
    """Learn a vocabulary; `progress(tokens, vocab_size)` is called after every merge.

        >>> train(["low lower lowest"], TrainingOptions(vocab_size=260)).merges
        [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

    Tokens, ids and merges equal those of `tokenizers`' BpeTrainer for the same options, where the
    documents have been cut at the special tokens.

    Raises:
        InvalidArgumentError: a document holds a lone surrogate, or there is too much text.
    """
    counts = count_pieces(cut_at(options.special_tokens, documents), options.pattern)
    codes = codes_of(counts, options.alphabet)
    ends = np.flatnonzero(codes == SEPARATOR_CODES[options.alphabet])
    weights = weights_of(ends, np.fromiter(counts.values(), np.int64, len(counts)))
    alphabet = _alphabet(codes, weights, options)
    tokens = [*dict.fromkeys(options.special_tokens), *alphabet.values()]
    symbols = _ids(codes, list(alphabet), len(tokens), options)
    outside = np.add.reduceat(symbols == _OUTSIDE, ends)[:-1] if len(counts) else np.zeros(0, int)
    if outside.any():
        symbols, weights = symbols[symbols != _OUTSIDE], weights[symbols != _OUTSIDE]
    del codes, ends

    longest = options.max_token_length or _UNLIMITED
    limits = Limits(options.vocab_size, options.min_frequency, longest)
    pieces = Pieces(symbols, weights, limits, len(tokens))
    with _without_garbage_collection():
        merges = learn_merges(pieces, tokens, limits, progress)
    trained = TrainedVocabulary(
        options,
        tokens,
        [(tokens[left], tokens[right]) for left, right in merges],
        dict(counts),
        dict(zip(counts, pieces.tokens_per_piece().tolist(), strict=True)),
        sum(n * count for n, count in zip(outside.tolist(), counts.values(), strict=True)),
    )
    _count_anew(trained, [piece for piece, n in zip(counts, outside, strict=True) if n])
    return trained


def _count_anew(trained: TrainedVocabulary, pieces: list[str]) -> None:
    """Correct the tokens of pieces with characters outside the alphabet: these have vanished for
    the merges, but a tokenizer merges nothing across them."""
    ranks = {_spelled(*pair, sep=" "): rank for rank, pair in enumerate(trained.merges)}
    for piece in pieces:
        trained.piece_tokens[piece] = len(merge_pairs(list(_spelled(piece)), ranks))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """The queue holds very many small objects, none in a cycle; to look for cycles among them again
    and again would take a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _alphabet(codes: Codes, weights: NDArray[np.int64], options: TrainingOptions) -> dict[int, str]:
    """Code → character, in the order of the characters' code points."""
    if options.alphabet == "bytes":
        return {byte: char for char, byte in sorted(BYTE_OF_CHARACTER.items())}
    kept = frequent_characters(codes, weights, options.limit_alphabet)
    return {code: chr(code) for code in kept.tolist()}


def _ids(
    codes: Codes, alphabet: list[int], ids: int, options: TrainingOptions
) -> NDArray[np.int32]:
    """The id of each code: those of the alphabet are the last of `ids`."""
    id_of_code = np.full(CODE_POINTS, _OUTSIDE, np.int32)
    id_of_code[alphabet] = np.arange(ids - len(alphabet), ids)
    id_of_code[SEPARATOR_CODES[options.alphabet]] = SEPARATOR
    return id_of_code[codes]
