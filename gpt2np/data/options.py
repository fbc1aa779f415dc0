"""The options of `gpt2np.tokenizer.dataset.encode_dataset`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpt2np.options import Flag, Integer, Text, attributes_text, check_options, option

field_option = partial(
    option,
    "text",
    Text(),
    "In .jsonl, .csv, .tsv and .parquet files, the field or column with the text",
    metavar="FIELD",
)


@dataclass(frozen=True)
class DatasetOptions:
    """Options of `encode_dataset`, which encodes a corpus to a file of token ids.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    field: str = field_option()
    skip_errors: bool = option(False, Flag(), "Skip a file if a part of the file cannot be read")
    combine: int = option(
        50_000,
        Integer(1),
        "For .npz: join documents with <|endoftext|> until the joined text has at least N "
        "characters",
        group="Output",
    )
    max_rows_per_file: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Write a folder with a manifest and files of at most N rows each, instead of one file",
        group="Output",
        default_text="one file",
    )
    processes: int = option(1, Integer(1), "Number of processes", group="Performance")

    def __post_init__(self) -> None:
        check_options(self)


DatasetOptions.__doc__ = f"{DatasetOptions.__doc__}\n{attributes_text(DatasetOptions)}"
