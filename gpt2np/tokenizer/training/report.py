"""Report on a trained vocabulary: how well the vocabulary compresses its training corpus."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gpt2np.errors import counted
from gpt2np.tokenizer.training.train import TrainedVocabulary
from gpt2np.tokenizer.vocabulary import chars_to_bytes

_N_LONGEST_TOKENS = 20


@dataclass(frozen=True)
class TrainingReport:
    """Statistics of a trained vocabulary and the training corpus."""

    vocab_size: int  # number of tokens
    merges: int  # number of merges
    characters: int  # number of characters in all documents
    symbols: int  # tokens before any merge: bytes or characters, depending on the alphabet
    tokens: int  # number of tokens of the corpus after all merges
    longest_tokens: list[str]  # quoted, the longest first

    @property
    def reduction(self) -> float:
        """Percentage by which merging reduces the number of tokens of the corpus."""
        return 100 * (1 - self.tokens / self.symbols) if self.symbols else 0.0

    def to_json(self) -> dict[str, Any]:
        """Convert the report to a dictionary for `json.dumps`."""
        return asdict(self) | {"reduction_percent": round(self.reduction, 2)}

    def to_text(self) -> str:
        """Format the report as text."""
        characters = self.characters or 1
        lines = [
            f"{counted(self.vocab_size, 'token')}, {counted(self.merges, 'merge')}, learned from "
            f"{counted(self.characters, 'character')}",
            f"tokens per character: {self.symbols / characters:.3f} before any merge, "
            f"{self.tokens / characters:.3f} after",
            f"{self.symbols:,} → {self.tokens:,} tokens: {self.reduction:.1f} % fewer",
            "longest tokens:",
        ]
        return "\n".join([*lines, *(f"  {token}" for token in self.longest_tokens)])


def report_training(trained: TrainedVocabulary) -> TrainingReport:
    """Compute the statistics of `trained`."""
    counts, in_bytes = trained.piece_counts, trained.options.alphabet == "bytes"
    characters = sum(len(piece) * count for piece, count in counts.items())
    symbols = sum(len(piece.encode()) * count for piece, count in counts.items())
    ordinary = [token for token in trained.tokens if token not in trained.special_ids]
    longest = sorted(ordinary, key=len, reverse=True)[:_N_LONGEST_TOKENS]
    return TrainingReport(
        vocab_size=len(trained.tokens),
        merges=len(trained.merges),
        characters=characters,
        symbols=symbols if in_bytes else characters,
        tokens=sum(trained.piece_tokens[piece] * count for piece, count in counts.items()),
        longest_tokens=[quote_token(token, in_bytes) for token in longest],
    )


def quote_token(token: str, in_bytes: bool) -> str:
    """Quote a token as a Python str, or bytes if not UTF-8. `in_bytes`: spelled like "Ġthe"."""
    data = chars_to_bytes(token) if in_bytes else token.encode()
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
