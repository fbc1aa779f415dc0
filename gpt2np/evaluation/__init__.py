"""Evaluations by published definitions: perplexity, LAMBADA, WikiText, multiple choice.

perplexity       perplexity of texts, as in Hugging Face's guide "Perplexity of fixed-length
                 models"; perplexity of WikiText per word and byte, as in lm-evaluation-harness
lambada          accuracy on last words, as in lm-evaluation-harness or as in the GPT-2 paper
multiple_choice  accuracy on multiple-choice questions, as in lm-evaluation-harness
loglikelihood    answers to the requests that lm-evaluation-harness sends to a model
documents        readers of text files and JSON Lines files
harness          an adapter that runs a gpt2np model in lm-evaluation-harness (extra `harness`)

`perplexity`, `wikitext`, `lambada` and `multiple_choice` take a `LanguageModel` and texts or
questions, and return a `Result`. `gpt2np.generation.scoring` computes the log probabilities.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gpt2np.errors import check_argument

__all__ = ["ProgressCallback", "Result"]

ProgressCallback = Callable[[int, int, Mapping[str, float]], object]
"""Called as `on_progress(done, total, metrics)`; `metrics` are the values so far, by name."""


def ignore_progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
    """Do nothing: the default `ProgressCallback`."""


def check_text_list(name: str, texts: object) -> None:
    """Raise InvalidArgumentError if `texts` is not a list of texts."""
    is_list = isinstance(texts, Sequence) and not isinstance(texts, (str, bytes))
    check_argument(is_list, name, texts, "a list of texts")


def exp_or_inf(nats: float) -> float:
    """Return e to the power of `nats`; infinity on overflow."""
    import numpy as np  # the command line reads the options of this package without NumPy

    from gpt2np.kernels import exact

    return float(exact.exp(np.float64(nats)))


class Result(ABC):
    """Base class of the results of evaluations."""

    JSON_FIELDS: ClassVar[tuple[str, ...]]  # names of the attributes that `to_json` returns

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Return the result as a table: (name, value) rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dict, with None for infinite and undefined values."""
        values = {name: getattr(self, name) for name in self.JSON_FIELDS}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def to_text(self) -> str:
        """Format the result as a table of two columns."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def format_share(part: int, whole: int) -> str:
    """Format `part` / `whole` and both counts, as in "0.2500 (1 of 4)"."""
    return f"{part / whole:.4f} ({part:,} of {whole:,})"
