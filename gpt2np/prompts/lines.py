"""Prompts in a file: a text on each line of a .txt, a JSON text or object on each of a .jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpt2np.data.files import reject_duplicate_keys
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.generation import GenerationOptions

SUFFIXES = (".txt", ".jsonl")

_OPTIONS = frozenset(each.name for each in fields(GenerationOptions))


@dataclass(frozen=True)
class PromptLine:
    """A line of the file.

    Attributes:
        number: counted from 1, blank lines included.
        prompt: a text or ids; None for a blank line, or if there is a `problem`.
        options: its own, of `LanguageModel.generate`.
        label: what it calls itself, its "id".
        problem: what is wrong with it.
    """

    number: int
    prompt: str | list[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    label: Any = None
    problem: str | None = None


def check_prompts(path: Path) -> int:
    """The number of lines in a file of prompts.

    Raises:
        InvalidArgumentError: it can't be read, or its name doesn't tell what it is.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidArgumentError(
            f"{path}: the name's end tells the format; it must be {' or '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise InvalidArgumentError(f"there is no file {path}")
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise InvalidArgumentError(f"can't read {path}: {error.strerror}") from error


def read_lines(path: Path, after: int = 0) -> Iterator[PromptLine]:
    """The lines of a file of prompts, but for the first `after`."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if number > after:
                yield _line(number, data, is_json=path.suffix == ".jsonl")


def _line(number: int, data: bytes, *, is_json: bool) -> PromptLine:
    data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            return PromptLine(number)
        return _parsed(number, text) if is_json else PromptLine(number, text)
    except UnicodeDecodeError as error:
        return PromptLine(number, problem=f"not UTF-8 text: byte 0x{data[error.start]:02x}")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        return PromptLine(number, problem=f"{half!r} is half of a surrogate pair, no character")
    except RecursionError:
        return PromptLine(number, problem="not JSON that can be read: nested too deeply")
    except ValueError as error:
        return PromptLine(number, problem=f"not JSON ({error})")


def _parsed(number: int, text: str) -> PromptLine:
    content = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    json.dumps(content, ensure_ascii=False).encode()  # raises where it could not be written again
    if isinstance(content, str):
        return PromptLine(number, content)
    if not isinstance(content, dict) or "prompt" not in content:
        return PromptLine(number, problem='neither a text nor an object with a "prompt"')
    options = {name: value for name, value in content.items() if name not in ("prompt", "id")}
    if options.get("seed", 0) is None:  # it has none of its own
        del options["seed"]
    if unknown := sorted(options.keys() - _OPTIONS):
        return PromptLine(number, problem=f"there is no option {short_repr(unknown[0])}")
    prompt, label = content["prompt"], content.get("id")
    if not isinstance(prompt, (str, list)):
        return PromptLine(number, problem=f"the prompt is {short_repr(prompt)}, no text and no ids")
    return PromptLine(number, prompt, options, label)
