"""Finished parts in the folder of an unfinished job."""

import json
from pathlib import Path


def part_paths(folder: Path) -> list[Path]:
    """Return the paths of the parts, in order."""
    return sorted(folder.glob("part-*"))


def read_part(path: Path, stream: int = 0) -> bytes:
    """Return the content of a stream of a part."""
    header, _, content = path.read_bytes().partition(b"\n")
    sizes = json.loads(header)["sizes"]
    start = sum(sizes[:stream])
    return content[start : start + sizes[stream]]
