"""Outputs of rows: JSON Lines or Parquet, in one file or a folder of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpt2np.data.files import check_output_file
from gpt2np.data.parquet import Columns, import_pyarrow, write_rows
from gpt2np.data.resumable import ReadStream
from gpt2np.errors import InvalidArgumentError, check_argument

ROW_SUFFIXES = (".jsonl", ".parquet")


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of a .jsonl file.

    JSON escapes a lone surrogate: a byte of a path that is not UTF-8 is written as `\\udcff`.
    """
    return json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def assemble_rows(
    read: ReadStream, out: Path, columns: Columns, max_rows_per_file: int | None = None
) -> int:
    """Write the rows of a job, which are JSON Lines, to `out`; return the number of rows.

    `columns` and `max_rows_per_file` are those of `write_output`.
    """
    lines = (line for content in read(0) for line in content.splitlines(keepends=True))
    rows = map(json.loads, lines) if out.suffix == ".parquet" else lines
    return write_output(rows, out, columns, max_rows_per_file)


def write_output(
    rows: Iterator[Any], out: Path, columns: Columns, max_rows_per_file: int | None
) -> int:
    """Write rows to `out`, and return their number: lines of JSON, or Parquet with `columns`.

    If there are no rows, `out` is not written. With `max_rows_per_file`, `out` becomes a folder
    with files of so many rows, in order, and `_manifest.json`, which lists the files. Readers of
    Parquet folders skip names with "_".
    """
    files: list[dict[str, Any]] = []
    n_rows = 0
    for first in rows:
        group = chain([first], islice(rows, max_rows_per_file and max_rows_per_file - 1))
        if max_rows_per_file is None:
            return _write_file(group, out, columns)
        out.mkdir(exist_ok=True)
        path = out / f"part-{len(files):05}{out.suffix}"
        n_written = _write_file(group, path, columns)
        files.append({"name": path.name, "rows": n_written, "bytes": path.stat().st_size})
        n_rows += n_written
    if files:
        manifest = json.dumps({"rows": n_rows, "files": files}, indent=1)
        (out / "_manifest.json").write_text(f"{manifest}\n", encoding="utf-8")
    return n_rows


def _write_file(rows: Iterable[Any], path: Path, columns: Columns) -> int:
    if path.suffix == ".parquet":
        return write_rows(rows, path, columns)
    with path.open("wb") as file:
        return sum(1 for line in rows if file.write(line))


def check_rows_output(out: Path, *, overwrite: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Raise a GPT2NPError if `out` can't be written, or is neither .jsonl nor .parquet."""
    if out.suffix not in ROW_SUFFIXES:
        check_argument(False, "out", f"{out}", f"a name that ends in {' or '.join(ROW_SUFFIXES)}")
    if out.suffix == ".parquet":
        import_pyarrow()
    check_output_file(out, overwrite=overwrite, inputs=inputs)


def check_max_rows(out: Path, max_rows_per_file: int | None) -> None:
    """Raise InvalidArgumentError if `max_rows_per_file` is invalid, or its folder `out` exists."""
    if max_rows_per_file is None:
        return
    check_argument(max_rows_per_file >= 1, "max_rows_per_file", max_rows_per_file, "at least 1")
    if out.exists() or out.is_symlink():
        raise InvalidArgumentError(f"{out} exists already; remove it, or choose another name")
