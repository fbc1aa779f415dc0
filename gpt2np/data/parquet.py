"""Parquet files: rows in, rows out, a batch of rows in memory at a time (extra `parquet`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from gpt2np.errors import GPT2NPError, InvalidArgumentError, error_reason, install_hint, short_repr
from gpt2np.limits import MIN_CHECKED_EXPANSION, check_expansion

NO_COLUMN = "{0} has no column {1!r}; its columns are {2}; choose one with the option {field}"

_ROWS_PER_BATCH = 32  # as Python objects, which take many times the memory of a table
_ROW_GROUP_BYTES = 16 << 20

Columns = Mapping[str, Any]
"""The columns of a file: name → type of the values.

A type is str, int, float, bool, [type] for lists, {name: type} for structs, or object: a value of
any other kind, stored as JSON text."""


def read_rows(
    stream: BinaryIO, name: object, column: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file: all columns, or only `column`. Errors show `name`.

    Raises:
        InvalidArgumentError: the file is damaged, has no such column, or expands by more than
            `Limits.max_compression_ratio`.
        GPT2NPError: pyarrow is not installed.
    """
    arrow, parquet = import_pyarrow()
    try:
        file = parquet.ParquetFile(stream, pre_buffer=False)
        names = file.schema_arrow.names
        if column is not None and column not in names:
            raise InvalidArgumentError(NO_COLUMN, name, column, short_repr(names), field=column)
        columns = None if column is None else [column]
        n_compressed, n_expanded = stream.seek(0, SEEK_END), 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            chunks = [group.column(n) for n in range(group.num_columns)]
            n_declared = sum(
                chunk.total_uncompressed_size
                for chunk in chunks
                if column in (None, chunk.path_in_schema.partition(".")[0])
            )
            check_expansion(name, n_compressed, n_declared)
            # Rows can repeat a value that the group stores once: few rows of large values at a time
            n_rows = max(1, min(_ROWS_PER_BATCH, MIN_CHECKED_EXPANSION // max(1, n_declared)))
            for batch in file.iter_batches(n_rows, [number], columns, use_threads=False):
                n_expanded += batch.nbytes
                check_expansion(name, n_compressed, n_expanded)
                yield from batch.to_pylist()
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
