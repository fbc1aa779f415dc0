"""JSON files that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

from gpt2np.errors import GPT2NPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def read_json_object(path: Path, error: type[GPT2NPError]) -> dict[str, Any]:
    """The JSON object in a UTF-8 file. Raises `error`, with the reason, if there is none."""
    import json  # only here, for those who never need it

    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise error(f"can't read {path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is damaged: not JSON ({problem})") from problem
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: expected a JSON object")
    return content
