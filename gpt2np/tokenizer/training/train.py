"""Train a vocabulary: documents in, the vocabulary of `tokenizers`' BpeTrainer out.

Three steps: count the pieces of all documents (`pieces`), write each distinct piece once as symbols
of the alphabet, and merge the most frequent pairs (`merges`).
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt2np.errors import InvalidArgumentError
from gpt2np.tokenizer.added_tokens import AddedToken
from gpt2np.tokenizer.bpe import merge_pairs
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN
from gpt2np.tokenizer.training.merges import (
    SEPARATOR,
    MergeLimits,
    PieceArray,
    Progress,
    learn_merges,
)
from gpt2np.tokenizer.training.pieces import (
    N_CODE_POINTS,
    SEPARATOR_CODES,
    Alphabet,
    Codes,
    count_pieces,
    encode_symbols,
    frequent_characters,
    pattern_pre_tokenizer,
    position_weights,
    split_at_separators,
)
from gpt2np.tokenizer.vocabulary import (
    CHAR_TO_BYTE,
    END_OF_TEXT,
    SPACE_PLACEHOLDER,
    Vocabulary,
    is_unicode_text,
)

UNK_TOKEN = "<unk>"
"""Special token for characters outside the alphabet; with the alphabet of characters only."""

_OUTSIDE = -3  # id of a character outside the alphabet
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training, with the meaning that they have in `tokenizers`' BpeTrainer.

    Attributes:
        vocab_size: number of tokens, special tokens and alphabet included. The result is smaller
            if no pair is left to merge, and larger if the alphabet alone is.
        min_frequency: minimum number of occurrences of a pair to merge; 0 and 1 are the same.
        max_token_length: merged tokens of three or more symbols (bytes or characters) stay
            *shorter* than this; pairs of the alphabet are always allowed.
        special_tokens: tokens that get the first ids. Text is split where one occurs.
        pattern: pre-tokenizer pattern; no token crosses the pieces that it matches (see
            `gpt2np.tokenizer.pre_tokenizer`). None: a document is one piece.
        alphabet: "bytes": all 256 bytes, spelled in the byte alphabet; "characters": the characters
            of the text.
        limit_alphabet: number of characters to keep, the most frequent ones (of equally frequent
            ones the smaller code point, where `tokenizers` leaves the choice to chance). Other
            characters vanish, and their neighbours become adjacent.

    Raises:
        InvalidArgumentError: an option is out of range, or two options contradict each other.
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
            raise InvalidArgumentError(
                f"min_frequency is {self.min_frequency}; it must be at least 0"
            )
        if self.alphabet not in ("bytes", "characters"):
            raise InvalidArgumentError(
                f"alphabet is {self.alphabet!r}; expected 'bytes' or 'characters'"
            )
        for token in self.special_tokens:
            if not token or not is_unicode_text(token):
                raise InvalidArgumentError(
                    f"the special token {token!a} is empty or not Unicode text"
                )
        if self.alphabet == "bytes":
            self._check_byte_alphabet()
        if self.pattern == "":
            raise InvalidArgumentError("the pattern is empty; use None for no pattern")
        pattern_pre_tokenizer(self.pattern)

    def _check_byte_alphabet(self) -> None:
        if self.limit_alphabet is not None:
            raise InvalidArgumentError(
                "limit_alphabet needs the alphabet of characters; all 256 bytes are always kept"
            )
        if clash := CHAR_TO_BYTE.keys() & set(self.special_tokens):
            raise InvalidArgumentError(
                f"the special token {min(clash)!r} is a character of the byte alphabet; "
                "choose a longer one"
            )
        minimum = 256 + len(set(self.special_tokens))
        if self.vocab_size < minimum:
            raise InvalidArgumentError(
                f"vocab_size is {self.vocab_size}; the 256 bytes and the special tokens need "
                f"{minimum}"
            )


@dataclass(frozen=True)
class TrainedVocabulary:
    """Result of a training.

    Attributes:
        options: options of the training.
        tokens: tokens by id, spelled in the byte alphabet ("Ġthe" for " the") if that is used.
        merges: merges by rank.
        piece_counts: piece → number of occurrences.
        piece_tokens: piece → number of tokens; a character outside the alphabet counts as one.
        unknown: number of characters of the corpus outside the alphabet.
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
        """Vocabulary for a `Tokenizer`, and for files."""
        in_bytes, pattern = self.options.alphabet == "bytes", self.options.pattern
        merges = [_spell(left, right, sep=" ") for left, right in self.merges]
        made = {merge.replace(" ", "") for merge in merges}
        ids = {_spell(token): token_id for token_id, token in enumerate(self.tokens)}
        for token in self.special_ids.keys() - made:
            del ids[_spell(token)]
        return Vocabulary(
            ids,
            {merge: rank for rank, merge in enumerate(merges)},
            tuple(AddedToken(token, token_id) for token, token_id in self.special_ids.items()),
            () if pattern is None else (pattern,),
            byte_level=in_bytes,
            unk_token=UNK_TOKEN if not in_bytes and UNK_TOKEN in self.special_ids else None,
        )


def _spell(*tokens: str, sep: str = "") -> str:
    return sep.join([token.replace(" ", SPACE_PLACEHOLDER) for token in tokens])


def train(
    documents: Iterable[str], options: TrainingOptions, on_progress: Progress | None = None
) -> TrainedVocabulary:
    """Train a vocabulary; call `on_progress(tokens, vocab_size)` after every merge.

        >>> train(["low lower lowest"], TrainingOptions(vocab_size=260)).merges
        [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

    Tokens, ids and merges equal those of `tokenizers`' BpeTrainer with the same options, for
    documents split at the special tokens.

    Raises:
        InvalidArgumentError: a document has a lone surrogate, or there is too much text.
    """
    counts = count_pieces(split_at_separators(options.special_tokens, documents), options.pattern)
    codes = encode_symbols(counts, options.alphabet)
    ends = np.flatnonzero(codes == SEPARATOR_CODES[options.alphabet])
    weights = position_weights(ends, np.fromiter(counts.values(), np.int64, len(counts)))
    alphabet = _make_alphabet(codes, weights, options)
    tokens = [*dict.fromkeys(options.special_tokens), *alphabet.values()]
    symbols = _symbol_ids(codes, list(alphabet), len(tokens), options)
    outside = np.add.reduceat(symbols == _OUTSIDE, ends)[:-1] if len(counts) else np.zeros(0, int)
    if outside.any():
        symbols, weights = symbols[symbols != _OUTSIDE], weights[symbols != _OUTSIDE]
    del codes, ends
    max_length = options.max_token_length or _UNLIMITED
    limits = MergeLimits(options.vocab_size, options.min_frequency, max_length)
    pieces = PieceArray(symbols, weights, limits, len(tokens))
    with _without_garbage_collection():
        merges = learn_merges(pieces, tokens, limits, on_progress)
    trained = TrainedVocabulary(
        options,
        tokens,
        [(tokens[left], tokens[right]) for left, right in merges],
        dict(counts),
        dict(zip(counts, pieces.tokens_per_piece().tolist(), strict=True)),
        sum(n * count for n, count in zip(outside.tolist(), counts.values(), strict=True)),
    )
    _recount_tokens(trained, [piece for piece, n in zip(counts, outside, strict=True) if n])
    return trained


def _recount_tokens(trained: TrainedVocabulary, pieces: list[str]) -> None:
    """Correct the token counts of pieces with characters outside the alphabet.

    Training merges across such a character; a tokenizer doesn't.
    """
    ranks = {_spell(*pair, sep=" "): rank for rank, pair in enumerate(trained.merges)}
    for piece in pieces:
        trained.piece_tokens[piece] = len(merge_pairs(list(_spell(piece)), ranks))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector.

    It would take a fifth of the time: the queue has very many small objects, none in a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _make_alphabet(
    codes: Codes, weights: NDArray[np.int64], options: TrainingOptions
) -> dict[int, str]:
    """Return code → character, by the code points of the characters."""
    if options.alphabet == "bytes":
        return {byte: char for char, byte in sorted(CHAR_TO_BYTE.items())}
    kept = frequent_characters(codes, weights, options.limit_alphabet)
    return {code: chr(code) for code in kept.tolist()}


def _symbol_ids(
    codes: Codes, alphabet: list[int], n_ids: int, options: TrainingOptions
) -> NDArray[np.int32]:
    """Return the id of each code; the codes of the alphabet have the last of `n_ids` ids."""
    id_of_code = np.full(N_CODE_POINTS, _OUTSIDE, np.int32)
    id_of_code[alphabet] = np.arange(n_ids - len(alphabet), n_ids)
    id_of_code[SEPARATOR_CODES[options.alphabet]] = SEPARATOR
    return id_of_code[codes]
