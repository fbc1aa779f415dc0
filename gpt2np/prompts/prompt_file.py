"""Prompt files: one text per line (.txt), one JSON value per line (.jsonl), or rows (.parquet).

A row is read as a JSON object of its values that are not null. Whole floats become integers:
pandas turns a column of integers with gaps into floats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpt2np.data.files import bounded_lines, file_name, reading, reject_duplicate_keys
from gpt2np.data.parquet import read_rows
from gpt2np.data.text import is_utf16
from gpt2np.errors import InvalidArgumentError, did_you_mean, short_repr
from gpt2np.generation.options import Options

SUFFIXES = (".txt", ".jsonl", ".parquet")


@dataclass(frozen=True)
class PromptLine:
    """A line of a prompt file."""

    number: int  # line number from 1, including blank lines
    prompt: str | list[int] | None = None  # None if the line is blank or invalid
    # Keyword arguments of `LanguageModel.generate`.
    options: dict[str, Any] = field(default_factory=dict)
    id: Any = None  # the value of "id"
    problem: str | None = None  # error message if the line is invalid
    digest: str = field(default="", compare=False)  # digest of the file up to this line


def count_lines(path: Path) -> int:
    """Count the lines of a prompt file.

    Raises:
        InvalidArgumentError: the file is empty, UTF-16 or can't be read, or its suffix is not in
            SUFFIXES.
    """
    if path.suffix not in SUFFIXES:
        is_table = path.suffix in (".csv", ".tsv")
        advice = "; convert a table with pandas: DataFrame.to_parquet" if is_table else ""
        raise InvalidArgumentError(f"{path} must end in {' or '.join(SUFFIXES)}{advice}")
    if not path.is_file():
        raise InvalidArgumentError(f"there is no file {path}")
    with reading(path, InvalidArgumentError):
        n_lines = sum(1 for _ in _raw_lines(path))
    if not n_lines:
        raise InvalidArgumentError(f"{path} is empty; there is no prompt to continue")
    return n_lines


def read_lines(path: Path, after: int = 0) -> Iterator[PromptLine]:
    """Yield the lines of a prompt file that follow line number `after`."""
    for number, (data, digest) in enumerate(_with_digests(_raw_lines(path)), 1):
        if number > after:
            line = _parse_line(number, data, is_json=path.suffix != ".txt")
            yield replace(line, digest=digest.hexdigest())


def line_digests(path: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Map each line number to the digest of the file through that line, if the line exists."""
    wanted = set(numbers)
    lines = enumerate(_with_digests(_raw_lines(path)), 1)
    return {number: digest.hexdigest() for number, (_, digest) in lines if number in wanted}


def _raw_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if path.suffix != ".parquet":
            if is_utf16(file.read(2)):
                raise InvalidArgumentError(f"{file_name(path)} is UTF-16; save it as UTF-8")
            file.seek(0)
            yield from bounded_lines(file, path)
            return
        for row in read_rows(file, path):
            values = {name: _whole(value) for name, value in row.items() if value is not None}
            yield json.dumps(values, ensure_ascii=False, default=str).encode() + b"\n"


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _with_digests(file: Iterable[bytes]) -> Iterator[tuple[bytes, hashlib._Hash]]:
    """Yield each line and the digest up to the line; later lines update the same digest object."""
    digest = hashlib.sha256()
    for data in file:
        digest.update(data.rstrip(b"\r\n") + b"\n")  # the last line may lack a line break
        yield data, digest


def _parse_line(number: int, data: bytes, *, is_json: bool) -> PromptLine:
    data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            return PromptLine(number)
        return _parse_json(number, text) if is_json else PromptLine(number, text)
    except UnicodeDecodeError as error:
        return PromptLine(number, problem=f"not UTF-8 text: byte 0x{data[error.start]:02x}")
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        return PromptLine(number, problem=f"{surrogate!r} is half of a surrogate pair")
    except RecursionError:
        return PromptLine(number, problem="JSON is nested too deeply")
    except ValueError as error:
        return PromptLine(number, problem=f"not JSON ({error})")


def _parse_json(number: int, text: str) -> PromptLine:
    content = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    json.dumps(content, ensure_ascii=False).encode()  # raises an error for a lone surrogate
    if isinstance(content, str):
        return PromptLine(number, content)
    if not isinstance(content, dict) or "prompt" not in content:
        return PromptLine(number, problem='expected a string or an object with a "prompt"')
    options = {name: value for name, value in content.items() if name not in ("prompt", "id")}
    if options.get("seed", 0) is None:  # null: the job chooses the seed
        del options["seed"]
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        hint = did_you_mean(unknown[0], Options.__annotations__)
        hint = hint or '; of other fields, only "id" is copied to the result'
        return PromptLine(number, problem=f"unknown option {short_repr(unknown[0])}{hint}")
    prompt = content["prompt"]
    if not isinstance(prompt, (str, list)):
        problem = f"the prompt is {short_repr(prompt)}; expected a string or a list of token ids"
        return PromptLine(number, problem=problem)
    return PromptLine(number, prompt, options, content.get("id"))
