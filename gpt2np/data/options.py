"""The options of the jobs that read a corpus: `encode_dataset` and `score_corpus`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from gpt2np.options import attributes_text, check_options, option

Special = Literal["error", "allow", "text"]

field_option = partial(
    option,
    "text",
    "In .jsonl, .csv, .tsv and .parquet files, the field or column with the text",
    metavar="FIELD",
)
_SPECIAL = (
    "'error' refuses the text, 'allow' encodes each as one token, 'text' encodes its characters"
)
SPECIAL_HELP = f"What to do with special tokens in a text: {_SPECIAL}"


@dataclass(frozen=True)
class DatasetOptions:
    """Options of `encode_dataset`, which encodes a corpus to a file of token ids.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    field: str = field_option()
    skip_errors: bool = option(False, "Skip files that cannot be read completely")
    special: Special = option(
        "error", f"What to do with special tokens other than <|endoftext|>: {_SPECIAL}"
    )
    combine: int = option(
        50_000,
        "For .npz: join documents with <|endoftext|> until the joined text has at least N "
        "characters",
        group="Output",
        low=1,
    )
    processes: int = option(1, "Number of processes", group="Performance", low=1, high=1000)

    def __post_init__(self) -> None:
        check_options(self)


DatasetOptions.__doc__ = f"{DatasetOptions.__doc__}\n{attributes_text(DatasetOptions)}"


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `score_corpus`; see `gpt2np.evaluation.perplexity.perplexity`.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    field: str = field_option()
    context: int | None = option(
        None, "Tokens per window", default_text="the model's context", low=2
    )
    stride: int | None = option(
        None,
        "Number of tokens from the start of a window to the start of the next window",
        default_text="half of a window",
        low=1,
    )
    from_end_of_text: bool = option(
        True,
        "Insert <|endoftext|> before each document, so that the document's first token is scored",
    )
    special: Special = option("text", SPECIAL_HELP)
    tokens: bool = option(
        False,
        "Add to each row of the output file the list token_scores, with an entry for each token",
        details="An entry has the id, text, span in characters, and log probability.",
        group="Output",
    )

    def __post_init__(self) -> None:
        check_options(self)
