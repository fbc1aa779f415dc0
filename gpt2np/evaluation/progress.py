"""Who watches an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Progress = Callable[[int, int, Mapping[str, float]], object]
"""Called as progress(done, total, values) with the values so far, by their names."""


def unwatched(done: int, total: int, values: Mapping[str, float]) -> None:
    """Nobody watches."""
