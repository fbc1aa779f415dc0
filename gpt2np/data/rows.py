"""Outputs of rows: JSON Lines, CSV or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt2np.data.corpus import kind_of
from gpt2np.data.parquet import Columns, write_rows

ROW_SUFFIXES = (".jsonl", ".csv", ".parquet")


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of a .jsonl file; values that JSON lacks become texts.

    JSON escapes a lone surrogate: a byte of a path that is not UTF-8 is written as `\\udcff`.
    """
    text = json.dumps(row, ensure_ascii=False, default=str)
    return text.encode(errors="backslashreplace") + b"\n"


def add_columns(
    inputs: Mapping[str, Any], results: Mapping[str, Any], columns: Columns
) -> dict[str, Any]:
    """Return the columns of an input row, and then its results.

    An input column with the name of one of the result's `columns` becomes "input_" + name.
    """
    renamed = {f"input_{name}" if name in columns else name: inputs[name] for name in inputs}
    return {**renamed, **results}


def assemble_rows(streams: Sequence[Path], out: Path, columns: Columns) -> None:
    """Write the rows of a job, lines of JSON, to `out`; a .jsonl file has the lines themselves.

    `columns` are those of the results; other columns precede them, with the types of their values.
    """
    if kind_of(out) == ".jsonl" or not streams[0].stat().st_size:
        return
    columns = {**_other_columns(_read(streams[0]), columns), **columns}
    if kind_of(out) == ".parquet":
        write_rows(_read(streams[0]), out, columns)
        return
    with out.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in _read(streams[0]):
            writer.writerow([_cell(row.get(name)) for name in columns])


def _read(stream: Path) -> Iterator[dict[str, Any]]:
    with stream.open("rb") as file:
        yield from map(json.loads, file)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _other_columns(rows: Iterable[Mapping[str, Any]], columns: Columns) -> dict[str, Any]:
    types: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            if name in columns:
                continue
            found = types.setdefault(name, set())
            if value is not None:
                is_large = isinstance(value, int) and abs(value) >> 63
                found.add(object if is_large else type(value))
    return {name: _common_type(found) for name, found in types.items()}


def _common_type(types: set[type]) -> Any:
    if types == {int, float}:
        return float
    kind = next(iter(types), str) if len(types) < 2 else object
    return kind if kind in (str, int, float, bool) else object
