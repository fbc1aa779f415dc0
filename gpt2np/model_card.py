"""The README.md of a model: what its author says of it."""

from __future__ import annotations

from pathlib import Path

CARD_FILE = "README.md"
_AT_MOST = 1 << 20  # characters; what comes first, the front matter, is what is wanted


def read_licence(folder: Path) -> str | None:
    """The licence that the card's front matter names, such as "mit"; None if it names none."""
    from huggingface_hub import ModelCard

    try:
        with (folder / CARD_FILE).open(encoding="utf-8") as file:
            card = ModelCard(file.read(_AT_MOST), ignore_metadata_errors=True)
    except Exception:  # whatever is wrong with a card, it names no licence
        return None
    licence = card.data.get("license_name") or card.data.get("license")
    return None if licence is None else str(licence)
