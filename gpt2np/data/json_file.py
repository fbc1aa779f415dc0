"""JSON files that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

from gpt2np.data.text_file import check_is_file
from gpt2np.errors import GPT2NPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMALL = 2 << 20
"""Bytes that a config or a header may have; parsed, they can need fifty times as much memory. GPT-2
XL's header has 60,000, the largest tokenizer_config.json in wide use 1.2 million."""


LARGE = 32 << 20
"""Bytes that a vocabulary may have: several times as many as any of GPT-2's kind in use."""


def read_json_object(
    path: Path, error: type[GPT2NPError], *, at_most: int | None = None
) -> dict[str, Any]:
    """The JSON object in a UTF-8 file. Raises `error`, with the reason, if there is none.

    With `at_most`, a file of more bytes is not read at all.
    """
    import json  # only here, for those who never need it

    try:
        check_is_file(path, error)
        if at_most is not None and (size := path.stat().st_size) > at_most:
            raise error(f"{path} has {size:,} bytes; expected at most {at_most:,}")
        text = path.read_bytes().decode("utf-8-sig")
        content = json.loads(text, object_pairs_hook=without_duplicates)
    except OSError as problem:
        raise error(f"can't read {path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is damaged: not JSON ({problem})") from problem
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: expected a JSON object")
    return content


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members, for json's object_pairs_hook. ValueError if two have the same key."""
    content = dict(pairs)
    if len(content) < len(pairs):  # json would take the last, and other readers the first
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} comes twice")
            seen.add(key)
    return content
