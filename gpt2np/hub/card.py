"""The README.md of a model: what its author says of it."""

from __future__ import annotations

import re
from pathlib import Path

CARD_FILE = "README.md"
_AT_MOST = 1 << 16  # characters that are looked at: the front matter stands first, and is short

_FRONT_MATTER = re.compile(r"---\n(.*?)\n---", re.DOTALL)
_LICENCE = re.compile(r"^(license|license_name):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def read_licence(folder: Path) -> str | None:
    """The licence that the card's front matter names, such as "mit"; None if it names none."""
    card = folder / CARD_FILE
    if not card.is_file():
        return None
    try:
        with card.open(encoding="utf-8-sig") as file:
            front = _FRONT_MATTER.match(file.read(_AT_MOST))
    except (OSError, ValueError):
        return None
    named = {key: value.strip("\"'") for key, value in _LICENCE.findall(front[1] if front else "")}
    return named.get("license_name") or named.get("license")
