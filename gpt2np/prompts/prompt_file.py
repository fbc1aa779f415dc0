"""Files of prompts: a text per line (.txt), a JSON value per line (.jsonl), or rows of a table.

In a row, values that are null or empty are left out. Whole floats become integers: pandas turns a
column of integers with gaps into floats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpt2np.data.corpus import Record, kind_of, read_records
from gpt2np.data.files import reading
from gpt2np.data.parquet import count_rows
from gpt2np.data.text import is_unicode_text
from gpt2np.errors import InvalidArgumentError, did_you_mean, short_repr
from gpt2np.generation.options import Options

Convert = Callable[[Any], Any]
"""Converts the value of an option in a row."""


@dataclass(frozen=True)
class PromptLine:
    """A line of a prompt file."""

    number: int  # line number from 1, including blank lines
    prompt: str | list[int] | None = None  # None if the line is invalid
    # Keyword arguments of `LanguageModel.generate`.
    options: Mapping[str, Any] = field(default_factory=dict)
    id: Any = None  # the value of "id"
    columns: Mapping[str, Any] = field(default_factory=dict)  # other values, for the result
    problem: str | None = None  # error message if the line is invalid
    digest: str = field(default="", compare=False)


def count_lines(path: Path) -> int:
    """Count the lines of a prompt file, or the rows of a .parquet file.

    Raises:
        InvalidArgumentError: the file is empty or can't be read.
    """
    if not path.is_file():
        raise InvalidArgumentError(f"there is no file {path}")
    if kind_of(path) == ".parquet":
        n_lines = count_rows(path)
    else:
        with reading(path, InvalidArgumentError), path.open("rb") as file:
            n_lines = sum(1 for _ in file)
    if not n_lines:
        raise InvalidArgumentError(f"{path} is empty; there is no prompt to continue")
    return n_lines


def read_prompts(path: Path, name: str = "prompt", after: int = 0) -> Iterator[PromptLine]:
    """Yield the lines that follow line number `after`; `name` is the field of a row's prompt.

    Blank lines are left out.
    """
    kind = kind_of(path).removesuffix(".gz")
    convert = {".csv": _from_cell, ".tsv": _from_cell, ".parquet": _whole}.get(kind, _unchanged)
    for record in read_records(path, name, None):
        if record.number > after:
            yield replace(_parse(record, name, convert), digest=_digest(record))


def line_digests(path: Path, name: str, n: int) -> list[str]:
    """Return a digest of each of the first n lines; a blank line has that of the next line."""
    digests: list[str] = []
    for record in read_records(path, name, None):
        if len(digests) >= n:
            break
        digests += [_digest(record)] * (record.number - len(digests))
    return digests[:n]


def _digest(record: Record) -> str:
    return hashlib.sha256(repr(record[1:]).encode(errors="backslashreplace")).hexdigest()[:16]


def _parse(record: Record, name: str, convert: Convert) -> PromptLine:
    number, value, problem = record
    if isinstance(value, dict) and name in value and problem is None:
        if not is_unicode_text(json.dumps(value, ensure_ascii=False, default=str)):
            return PromptLine(number, problem="a text has half of a surrogate pair")
        return _parse_object(number, value, name, convert)
    if problem is None and not isinstance(value, str):
        problem = f"expected a string or an object with a {json.dumps(name)}"
    elif problem is None and not is_unicode_text(value):
        problem = "a text has half of a surrogate pair"
    return PromptLine(number, None if problem else value, problem=problem)


def _parse_object(number: int, row: Mapping[str, Any], name: str, convert: Convert) -> PromptLine:
    prompt = row[name]
    if not isinstance(prompt, (str, list)):
        problem = f"the prompt is {short_repr(prompt)}; expected a string or a list of token ids"
        return PromptLine(number, problem=problem)
    options, columns = {}, {name: prompt} if name != "prompt" else {}
    for key, value in row.items():
        if key in (name, "id"):
            continue
        if key not in Options.__annotations__:
            if hint := did_you_mean(key, Options.__annotations__):
                return PromptLine(number, problem=f"unknown option {short_repr(key)}{hint}")
            columns[key] = value
        elif value is not None and value != "":
            options[key] = convert(value)
    return PromptLine(number, prompt, options, row.get("id"), columns)


def _unchanged(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _from_cell(text: str) -> Any:
    """Return the value of an option in a .csv file: JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
