"""Results of evaluations as JSON and as tables, and progress callbacks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

ProgressCallback = Callable[[int, int, Mapping[str, float]], object]
"""Called as `on_progress(done, total, metrics)`; `metrics` are the values so far, by name."""

PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")


def ignore_progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
    """Do nothing: the default `ProgressCallback`."""


def exp(nats: float) -> float:
    """Return e to the power of `nats`; infinity on overflow, as for one very long word."""
    return math.exp(nats) if nats < 709 else math.inf


class Result(ABC):
    """Result of an evaluation.

    Attributes:
        JSON_FIELDS: names of the attributes that `to_json` returns, in order.
    """

    JSON_FIELDS: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Return the (name, value) rows of the table."""

    def to_json(self) -> dict[str, Any]:
        """Return name → value; None for a value that is undefined or infinite."""
        values = {name: getattr(self, name) for name in self.JSON_FIELDS}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def to_text(self) -> str:
        """Format a table of two columns."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


class PerUnitResult(Result):
    """A result whose perplexity is also given per word and per byte of the text."""

    words: int
    bytes: int

    @property
    @abstractmethod
    def total_nats(self) -> float:
        """Negative log probability of the whole text."""

    @property
    def word_perplexity(self) -> float:
        """exp of the nats per word."""
        return exp(self.nats_per(self.words))

    @property
    def byte_perplexity(self) -> float:
        """exp of the nats per byte."""
        return exp(self.nats_per(self.bytes))

    @property
    def bits_per_byte(self) -> float:
        """Negative log probability of a byte, to base 2."""
        return self.nats_per(self.bytes) / math.log(2)

    def nats_per(self, count: int) -> float:
        """Return the negative log probability per unit, of which the text has `count`."""
        return self.total_nats / count if count else math.inf

    def per_unit_rows(self) -> list[tuple[str, str]]:
        """Return the table's rows for words and bytes."""
        return [(name.replace("_", " "), f"{getattr(self, name):.4f}") for name in PER_UNIT]


def format_share(part: int, whole: int) -> str:
    """Format a share with its counts: "0.2500 (1 of 4)"."""
    return f"{part / whole:.4f} ({part:,} of {whole:,})"
