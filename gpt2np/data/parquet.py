"""Parquet files: rows in, rows out, a batch of rows in memory at a time (extra `parquet`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from gpt2np.errors import GPT2NPError, InvalidArgumentError, error_reason, install_hint

_ROWS_PER_BATCH = 32  # as Python objects, which take many times the memory of a table
_ROW_GROUP_BYTES = 16 << 20

Columns = Mapping[str, Any]
"""The columns of a file: name → type of the values.

A type is str, int, float, bool, [type] for lists, {name: type} for structs, or object: a value of
any other kind, stored as JSON text."""


def column_names(stream: BinaryIO, name: object) -> list[str]:
    """Return the names of a Parquet file's columns; errors show `name`, as those of `read_rows`."""
    with _named_errors(name) as parquet:
        return list(parquet.ParquetFile(stream).schema_arrow.names)


def row_count(stream: BinaryIO, name: object) -> int:
    """Return the number of a Parquet file's rows; errors show `name`, as those of `read_rows`."""
    with _named_errors(name) as parquet:
        return int(parquet.ParquetFile(stream).metadata.num_rows)


def read_rows(
    stream: BinaryIO, name: object, columns: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file: all columns, or only `columns`.

    Raises:
        InvalidArgumentError: the file is damaged.
        GPT2NPError: pyarrow is not installed.
    """
    with _named_errors(name) as parquet:
        file = parquet.ParquetFile(stream, pre_buffer=False)
        for batch in file.iter_batches(_ROWS_PER_BATCH, columns=columns, use_threads=False):
            yield from batch.to_pylist()


@contextmanager
def _named_errors(name: object) -> Iterator[Any]:
    """Yield the module pyarrow.parquet; convert its errors to one that shows `name`."""
    arrow, parquet = import_pyarrow()
    try:
        yield parquet
    except (arrow.ArrowException, OSError) as error:
        raise InvalidArgumentError(
            f"cannot read {name} as Parquet: {error_reason(error)}"
        ) from error


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path, columns: Columns) -> int:
    """Write rows to a Parquet file, and return their number.

    A row may lack columns, whose values are then null. Lone surrogates, which stand for bytes of a
    path that are not UTF-8, are escaped, as in JSON.

    Raises:
        GPT2NPError: pyarrow is not installed.
        OSError: the file can't be written.
    """
    arrow, parquet = import_pyarrow()
    schema = arrow.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])
    remaining, tables, size, n_rows = iter(rows), [], 0, 0
    with path.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
        while batch := [dict(row) for row in islice(remaining, _ROWS_PER_BATCH)]:
            for row in batch:
                for name, kind in columns.items():
                    if kind is object and row.get(name) is not None:
                        row[name] = json.dumps(row[name], ensure_ascii=False)
                    elif kind is str and row.get(name):
                        row[name] = row[name].encode(errors="backslashreplace").decode()
            n_rows += len(batch)
            tables.append(arrow.Table.from_pylist(batch, schema))
            size += tables[-1].nbytes
            if size > _ROW_GROUP_BYTES:
                writer.write_table(arrow.concat_tables(tables))
                tables, size = [], 0
        if tables:
            writer.write_table(arrow.concat_tables(tables))
    return n_rows


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet, or raise GPT2NPError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise GPT2NPError(f"Parquet files need pyarrow; {install_hint('parquet')}") from error
    return pyarrow, pyarrow.parquet


def _arrow_type(kind: Any) -> Any:
    arrow, _ = import_pyarrow()
    if isinstance(kind, list):
        return arrow.list_(_arrow_type(kind[0]))
    if isinstance(kind, dict):
        return arrow.struct([(name, _arrow_type(inner)) for name, inner in kind.items()])
    types = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    return types.get(kind, arrow.string())
