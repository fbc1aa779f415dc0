"""Saved progress in the folder of an unfinished job."""

import json
from pathlib import Path


def saves(folder: Path) -> list[list]:
    """Return the lines of progress.jsonl: position, sizes of the streams, …"""
    file = folder / "progress.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
