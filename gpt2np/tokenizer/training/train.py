"""Training of a vocabulary on documents; the result equals that of `tokenizers`' BpeTrainer.

Training counts the pieces of all documents, writes each distinct piece once as symbols of the
alphabet, and merges the most frequent pairs (module `merges`). For speed, words are counted first,
and only distinct words are split into pieces: see `gpt2np.tokenizer.pre_tokenizer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt2np.data.text import any_literal
from gpt2np.errors import InvalidArgumentError, check_argument, short_repr
from gpt2np.interrupts import no_garbage_collection
from gpt2np.tokenizer.pre_tokenizer import PreTokenizer, make_pre_tokenizer, split_text, word_text
from gpt2np.tokenizer.training.merges import SEPARATOR, PieceArray, Progress, learn_merges
from gpt2np.tokenizer.training_options import UNK_TOKEN, Alphabet, TrainingOptions
from gpt2np.tokenizer.vocabulary import CHAR_TO_BYTE, SPACE_PLACEHOLDER, AddedToken, Vocabulary

_OUTSIDE = -3  # id of U+FFFF, which separates tokens because it is no character of a text

Codes = NDArray[np.uint8] | NDArray[np.uint32]

N_CODE_POINTS = 0x110000
MAX_POSITIONS = 1 << 31
SEPARATOR_CODES: dict[Alphabet, int] = {"bytes": 0xFF, "characters": 0xDFFF}
"""Code between two pieces: a byte that UTF-8 never uses, or a code point that no text has."""

_MAX_WORDS = 1 << 19  # distinct words to count before they are split into pieces


@dataclass(frozen=True)
class TrainedVocabulary:
    """Trained vocabulary, with the counts from its training corpus."""

    options: TrainingOptions
    tokens: list[str]  # by id; spelled as in vocab.json ("Ġthe") with the alphabet "bytes"
    merges: list[tuple[str, str]]  # by rank
    piece_counts: dict[str, int]  # piece → number of occurrences
    piece_tokens: dict[str, int]  # piece → number of tokens

    @property
    def special_ids(self) -> dict[str, int]:
        """Dictionary from the text of a special token to its id."""
        return {token: n for n, token in enumerate(dict.fromkeys(self.options.special_tokens))}

    @property
    def vocabulary(self) -> Vocabulary:
        """The trained vocabulary in the form that `Tokenizer` takes."""
        in_bytes, pattern = self.options.alphabet == "bytes", self.options.pattern
        merges = [_spell(left, right, sep=" ") for left, right in self.merges]
        made = {merge.replace(" ", "") for merge in merges}
        ids = {_spell(token): token_id for token_id, token in enumerate(self.tokens)}
        for token in map(_spell, self.special_ids):
            if token not in made and len(token) > 1:  # a character also occurs in other texts
                del ids[token]
        return Vocabulary(
            ids,
            {merge: rank for rank, merge in enumerate(merges)},
            tuple(AddedToken(token, token_id) for token, token_id in self.special_ids.items()),
            pattern,
            byte_level=in_bytes,
            unk_token=UNK_TOKEN if not in_bytes and UNK_TOKEN in self.special_ids else None,
        )


def _spell(*tokens: str, sep: str = "") -> str:
    return sep.join([token.replace(" ", SPACE_PLACEHOLDER) for token in tokens])


def train(
    documents: Iterable[str], options: TrainingOptions, on_progress: Progress | None = None
) -> TrainedVocabulary:
    """Train a vocabulary; call `on_progress(n_tokens, vocab_size)` after every merge.

        >>> train(["low lower lowest"], TrainingOptions(vocab_size=260)).merges
        [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

    Documents are split at the special tokens. `tokenizers`' BpeTrainer learns the same tokens, ids
    and merges if its documents are split in the same way.

    Raises InvalidArgumentError if a document has a lone surrogate, or the distinct pieces exceed
    MAX_POSITIONS symbols.
    """
    is_list = isinstance(documents, Iterable) and not isinstance(documents, (str, bytes))
    check_argument(is_list, "documents", documents, "a list of texts")
    counts = count_pieces(split_at_separators(options.special_tokens, documents), options.pattern)
    codes = encode_symbols(counts, options.alphabet)
    ends = np.flatnonzero(codes == SEPARATOR_CODES[options.alphabet])
    weights = position_weights(ends, np.fromiter(counts.values(), np.int64, len(counts)))
    alphabet = _make_alphabet(codes, options.alphabet)
    tokens = [*dict.fromkeys(options.special_tokens), *alphabet.values()]
    symbols = _symbol_ids(codes, list(alphabet), len(tokens), options)
    del codes, ends
    pieces = PieceArray(symbols, weights, options, len(tokens))
    with no_garbage_collection():  # which would cost a fifth of the time
        merges = learn_merges(pieces, tokens, options, on_progress)
    return TrainedVocabulary(
        options,
        tokens,
        [(tokens[left], tokens[right]) for left, right in merges],
        dict(counts),
        dict(zip(counts, pieces.tokens_per_piece().tolist(), strict=True)),
    )


def _make_alphabet(codes: Codes, alphabet: Alphabet) -> dict[int, str]:
    """Return {byte or code point: character} of the initial tokens, sorted."""
    if alphabet == "bytes":
        return {byte: char for char, byte in sorted(CHAR_TO_BYTE.items())}
    occurs = np.zeros(N_CODE_POINTS, bool)
    occurs[codes] = True
    occurs[[SEPARATOR_CODES[alphabet], ord(SPACE_PLACEHOLDER)]] = False  # not characters of a text
    return {code: chr(code) for code in occurs.nonzero()[0].tolist()}


def _symbol_ids(
    codes: Codes, alphabet: list[int], n_ids: int, options: TrainingOptions
) -> NDArray[np.int32]:
    """Map `codes` (bytes or code points) to token ids; the alphabet gets the last of the ids."""
    id_of_code = np.full(N_CODE_POINTS, _OUTSIDE, np.int32)
    id_of_code[alphabet] = np.arange(n_ids - len(alphabet), n_ids)
    id_of_code[SEPARATOR_CODES[options.alphabet]] = SEPARATOR
    return id_of_code[codes]


def split_at_separators(separators: Collection[str], documents: Iterable[str]) -> Iterator[str]:
    """Split the documents at `separators`; at each position, the longest match wins."""
    split = any_literal(frozenset(separators)).split
    for document in documents:
        if any(separator in document for separator in separators):
            yield from split(document)
        else:
            yield document


def count_pieces(documents: Iterable[str], pattern: str | None) -> Counter[str]:
    """Split documents into pieces by `pattern` (None: no split), and count each distinct piece."""
    pre_tokenize = make_pre_tokenizer(pattern)
    pieces: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for document in documents:
        for chunk, keys in split_text(document, pattern):
            if keys is None:
                pieces.update(pre_tokenize(chunk))
            else:
                words.update(keys)
        if len(words) > _MAX_WORDS:
            _move_words(words, pieces, pre_tokenize)
    _move_words(words, pieces, pre_tokenize)
    return pieces


def _move_words(words: Counter[str], pieces: Counter[str], pre_tokenize: PreTokenizer) -> None:
    """Split `words` into pieces, add the counts to `pieces`, and clear `words`."""
    for key, count in words.items():
        for piece in pre_tokenize(word_text(key)):
            pieces[piece] += count
    words.clear()


def encode_symbols(pieces: Collection[str], alphabet: Alphabet) -> Codes:
    """Join `pieces` to one array of bytes or code points. Returns (N,).

    The array has a separator code before, between and after the pieces.

    Raises:
        InvalidArgumentError: a piece has a lone surrogate, or the array would be too long.
    """
    try:
        encoded = [piece.encode() for piece in pieces]
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{short_repr(error.object)} has a lone surrogate, which UTF-8 can't express"
        ) from error
    separator = SEPARATOR_CODES[alphabet]
    codes: Codes
    if alphabet == "bytes":
        codes = np.frombuffer(bytes([separator]).join([b"", *encoded, b""]), np.uint8)
    else:
        joined = chr(separator).join(["", *pieces, ""])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")
    if len(codes) >= MAX_POSITIONS:
        raise InvalidArgumentError(
            f"the distinct pieces have {len(codes)} {alphabet}, the limit is {MAX_POSITIONS}; use "
            "less text, or a pattern"
        )
    return codes


def position_weights(ends: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (N,): how often the piece at each position occurs; 0 for separators, at `ends`."""
    if len(counts) and counts.min() == counts.max():
        return np.broadcast_to(counts[0], ends[-1] + 1)  # takes no memory
    return np.repeat(np.append(counts, 0), np.diff(ends, append=ends[-1] + 1))
