"""Report on a trained vocabulary: how well the vocabulary compresses its training corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpt2np.data.corpus import TextPart
from gpt2np.errors import GPT2NPError, counted
from gpt2np.tokenizer.training.train import TrainedVocabulary, token_counter
from gpt2np.tokenizer.vocabulary import chars_to_bytes

_BAR_WIDTH = 40
_N_LONGEST_TOKENS = 20
_MAX_ROWS = 20


@dataclass(frozen=True)
class TrainingReport:
    """Statistics of a trained vocabulary and the training corpus."""

    vocab_size: int  # number of tokens
    merges: int  # number of merges
    documents: int  # number of documents
    characters: int  # number of characters in all documents
    symbols: int  # tokens before any merge: bytes or characters, depending on the alphabet
    tokens: int  # number of tokens of the corpus after all merges
    unknown: int  # number of characters without a token
    longest_tokens: list[str]  # quoted, the longest first
    token_lengths: dict[int, int]  # length in symbols → number of tokens, special tokens excluded
    document_tokens: dict[int, int]  # number of tokens → number of documents with so many tokens

    @property
    def reduction(self) -> float:
        """Percentage by which merging reduces the number of tokens of the corpus."""
        return 100 * (1 - self.tokens / self.symbols) if self.symbols else 0.0

    def to_json(self) -> dict[str, Any]:
        """Convert the report to a dictionary for `json.dumps`."""
        return asdict(self) | {"reduction_percent": round(self.reduction, 2)}

    def to_text(self) -> str:
        """Format the report as text."""
        width = -(-max(self.token_lengths, default=1) // _MAX_ROWS)

        def equal_range(n: int) -> tuple[int, int]:
            return (n - 1) // width * width + 1, -(-n // width) * width

        def doubling_range(n: int) -> tuple[int, int]:
            return 1 << n.bit_length() >> 1, (1 << n.bit_length()) - 1

        return "\n".join(
            [
                f"{counted(self.vocab_size, 'token')}, {counted(self.merges, 'merge')}",
                f"{counted(self.documents, 'document')}, {counted(self.characters, 'character')}",
                "",
                f"tokens per character: {_ratio(self.symbols, self.characters)} before any "
                f"merge, {_ratio(self.tokens, self.characters)} after",
                f"{self.symbols:,} → {self.tokens:,} tokens: {self.reduction:.1f} % fewer",
                *([f"{self.unknown} characters have no token"] if self.unknown else []),
                "",
                "longest tokens:",
                *(f"  {token}" for token in self.longest_tokens),
                "",
                "length of the tokens:",
                *_histogram(self.token_lengths, equal_range),
                "",
                f"tokens per document: {_summarize(self.document_tokens)}",
                *_histogram(self.document_tokens, doubling_range),
            ]
        )


def report_training(trained: TrainedVocabulary, parts: Iterable[TextPart]) -> TrainingReport:
    """Compute the statistics of `trained`; `parts` has the training documents' text."""
    counts, in_bytes = trained.piece_counts, trained.options.alphabet == "bytes"
    characters = sum(len(piece) * count for piece, count in counts.items())
    symbols = sum(len(piece.encode()) * count for piece, count in counts.items())
    ordinary = [token for token in trained.tokens if token not in trained.special_ids]
    document_tokens = Counter(tokens_per_document(trained, parts))
    return TrainingReport(
        vocab_size=len(trained.tokens),
        merges=len(trained.merges),
        documents=document_tokens.total(),
        characters=characters,
        symbols=symbols if in_bytes else characters,
        tokens=sum(trained.piece_tokens[piece] * count for piece, count in counts.items()),
        unknown=trained.unknown,
        longest_tokens=[
            quote_token(token, in_bytes)
            for token in sorted(ordinary, key=len, reverse=True)[:_N_LONGEST_TOKENS]
        ],
        token_lengths=dict(sorted(Counter(map(len, ordinary)).items())),
        document_tokens=dict(sorted(document_tokens.items())),
    )


def tokens_per_document(trained: TrainedVocabulary, parts: Iterable[TextPart]) -> Iterator[int]:
    """Yield the number of tokens of each document in `parts`."""
    count = token_counter(trained.options.pattern, trained.piece_tokens)
    total = 0
    for text, ends_document in parts:
        try:
            total += count(text)
        except KeyError as error:
            raise GPT2NPError(
                f"the text changed during the training: {error} is new; train again"
            ) from error
        if ends_document:
            yield total
            total = 0


def quote_token(token: str, in_bytes: bool) -> str:
    """Quote a token as a Python str, or bytes if not UTF-8. `in_bytes`: spelled like "Ġthe"."""
    data = chars_to_bytes(token) if in_bytes else token.encode()
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def _ratio(tokens: int, characters: int) -> str:
    return f"{tokens / characters:.3f}" if characters else "-"


def _summarize(counts: Mapping[int, int]) -> str:
    lengths = sorted(Counter(counts).elements())
    if not lengths:
        return "no documents"
    return (
        f"{lengths[0]} to {lengths[-1]}, median {lengths[len(lengths) // 2]}, "
        f"mean {sum(lengths) / len(lengths):.1f}"
    )


def _histogram(
    counts: Mapping[int, int], range_of: Callable[[int], tuple[int, int]]
) -> Iterator[str]:
    """Yield a line with a bar for each bin of a histogram; `range_of` returns a number's bin."""
    ranges: Counter[tuple[int, int]] = Counter()
    for number, count in counts.items():
        ranges[range_of(number)] += count
    most = max(ranges.values(), default=1)
    for (first, last), count in sorted(ranges.items()):
        name = str(first) if first == last else f"{first}-{last}"
        yield f"  {name:>15} {'#' * -(-count * _BAR_WIDTH // most):{_BAR_WIDTH}} {count}"
