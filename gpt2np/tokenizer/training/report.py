"""What a trained vocabulary does to the text that it was learned from, in figures."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpt2np.data.corpus import TextPart
from gpt2np.tokenizer.alphabet import to_bytes
from gpt2np.tokenizer.training.pieces import token_counter
from gpt2np.tokenizer.training.train import TrainedVocabulary

_BAR = 40
_LONGEST = 20
_ROWS = 20


@dataclass(frozen=True)
class TrainingReport:
    """Figures of a training.

    Attributes:
        vocab_size: number of tokens.
        merges: number of merges.
        documents: number of documents.
        characters: in all documents.
        symbols: bytes or characters, whichever is the alphabet: the tokens before any merge.
        tokens: the tokens now.
        unknown: the characters that have no token.
        longest_tokens: readable, the longest first.
        token_lengths: length in symbols → number of tokens of the vocabulary; special ones aside.
        document_tokens: number of tokens → number of documents that have so many.
    """

    vocab_size: int
    merges: int
    documents: int
    characters: int
    symbols: int
    tokens: int
    unknown: int
    longest_tokens: list[str]
    token_lengths: dict[int, int]
    document_tokens: dict[int, int]

    @property
    def reduction(self) -> float:
        """By how many percent there are fewer tokens than symbols."""
        return 100 * (1 - self.tokens / self.symbols) if self.symbols else 0.0


def report_training(trained: TrainedVocabulary, blocks: Iterable[TextPart]) -> TrainingReport:
    """The figures; `blocks` are the documents that were trained on, once more."""
    counts, in_bytes = trained.piece_counts, trained.options.alphabet == "bytes"
    characters = sum(len(piece) * count for piece, count in counts.items())
    symbols = sum(len(piece.encode()) * count for piece, count in counts.items())
    ordinary = [token for token in trained.tokens if token not in trained.special_ids]
    of_documents = Counter(tokens_per_document(trained, blocks))
    return TrainingReport(
        vocab_size=len(trained.tokens),
        merges=len(trained.merges),
        documents=of_documents.total(),
        characters=characters,
        symbols=symbols if in_bytes else characters,
        tokens=sum(trained.piece_tokens[piece] * count for piece, count in counts.items()),
        unknown=trained.unknown,
        longest_tokens=[
            readable(token, in_bytes)
            for token in sorted(ordinary, key=len, reverse=True)[:_LONGEST]
        ],
        token_lengths=dict(sorted(Counter(map(len, ordinary)).items())),
        document_tokens=dict(sorted(of_documents.items())),
    )


def tokens_per_document(trained: TrainedVocabulary, blocks: Iterable[TextPart]) -> Iterator[int]:
    """The number of tokens of each document."""
    count = token_counter(trained.options.pattern, trained.piece_tokens)
    total = 0
    for text, ends in blocks:
        total += count(text)
        if ends:
            yield total
            total = 0


def readable(token: str, in_bytes: bool) -> str:
    """The token between quotes; as Python's bytes where it holds half a character."""
    if not in_bytes:
        return repr(token)
    data = to_bytes(token)
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def as_text(report: TrainingReport) -> str:
    """The report for people."""
    return "\n".join(
        [
            f"{report.vocab_size} tokens, {report.merges} merges",
            f"{report.documents} documents, {report.characters} characters",
            "",
            f"tokens per character: {_share(report.symbols, report.characters)} before any "
            f"merge, {_share(report.tokens, report.characters)} after",
            f"{report.symbols} → {report.tokens} tokens: {report.reduction:.1f} % fewer",
            *([f"{report.unknown} characters have no token"] if report.unknown else []),
            "",
            "longest tokens:",
            *(f"  {token}" for token in report.longest_tokens),
            "",
            "length of the tokens:",
            *_histogram(_in_steps(report.token_lengths)),
            "",
            f"tokens per document: {_spread(report.document_tokens)}",
            *_histogram(_in_powers_of_two(report.document_tokens)),
        ]
    )


def as_json(report: TrainingReport) -> dict[str, Any]:
    """The report for programs."""
    return asdict(report) | {"reduction_percent": round(report.reduction, 2)}


def _share(tokens: int, characters: int) -> str:
    return f"{tokens / characters:.3f}" if characters else "-"


def _spread(counts: Mapping[int, int]) -> str:
    lengths = sorted(Counter(counts).elements())
    if not lengths:
        return "no documents"
    return (
        f"{lengths[0]} to {lengths[-1]}, median {lengths[len(lengths) // 2]}, "
        f"mean {sum(lengths) / len(lengths):.1f}"
    )


def _in_steps(counts: Mapping[int, int]) -> dict[str, int]:
    """The counts in ranges of equal width, few enough to be read."""
    width = -(-max(counts, default=1) // _ROWS)
    return _in_ranges(counts, lambda n: ((n - 1) // width * width + 1, -(-n // width) * width))


def _in_powers_of_two(counts: Mapping[int, int]) -> dict[str, int]:
    return _in_ranges(counts, lambda n: (1 << n.bit_length() >> 1, (1 << n.bit_length()) - 1))


def _in_ranges(
    counts: Mapping[int, int], range_of: Callable[[int], tuple[int, int]]
) -> dict[str, int]:
    ranges: Counter[tuple[int, int]] = Counter()
    for number, count in counts.items():
        ranges[range_of(number)] += count
    return {
        str(first) if first == last else f"{first}-{last}": count
        for (first, last), count in sorted(ranges.items())
    }


def _histogram(counts: Mapping[str, int]) -> list[str]:
    most = max(counts.values(), default=1)
    return [
        f"  {name:>15} {'#' * -(-count * _BAR // most):{_BAR}} {count}"
        for name, count in counts.items()
    ]
