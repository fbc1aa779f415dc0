"""Results as people and programs read them."""

from __future__ import annotations

import math
from typing import Any

from gpt2np.evaluation.choices import Choices
from gpt2np.evaluation.lambada import Lambada
from gpt2np.evaluation.perplexity import Perplexity
from gpt2np.evaluation.wikitext import WikiText

Result = Perplexity | Lambada | WikiText | Choices

_PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")
_IN_JSON: dict[type[Result], tuple[str, ...]] = {
    Perplexity: (
        *("context", "stride", "documents", "tokens", "counted", "words", "characters", "bytes"),
        *("log_probability", "perplexity", "in_guide", *_PER_UNIT, "bits_per_character"),
    ),
    Lambada: ("definition", "passages", "accuracy", "accuracy_filtered", "perplexity"),
    WikiText: ("pages", "words", "bytes", "log_probability", *_PER_UNIT),
    Choices: ("questions", "acc", "acc_norm", "acc_bytes"),
}


def as_json(result: Result) -> dict[str, Any]:
    """The numbers by their names; null for one that there is not, or that is infinite."""
    values = {name: getattr(result, name) for name in _IN_JSON[type(result)]}
    return {name: value if _is_finite(value) else None for name, value in values.items()}


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def as_text(result: Result) -> str:
    """A table of two columns."""
    rows = _rows(result)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _rows(result: Result) -> list[tuple[str, str]]:
    if isinstance(result, Lambada):
        return _lambada_rows(result)
    if isinstance(result, Choices):
        return [
            ("acc", _share(result.correct, result.questions)),
            ("acc_norm", _share(result.correct_by_characters, result.questions)),
            ("acc_bytes", _share(result.correct_by_bytes, result.questions)),
        ]
    per_unit = [(name.replace("_", " "), f"{getattr(result, name):.4f}") for name in _PER_UNIT]
    if isinstance(result, WikiText):
        return [*per_unit, ("pages", f"{result.pages:,} ({result.words:,} words)")]
    return [
        ("perplexity", f"{result.perplexity:.4f} per token"),
        *per_unit,
        ("bits per character", f"{result.bits_per_character:.4f}"),
        ("tokens", f"{result.tokens:,}, of which {result.counted:,} count"),
        ("documents", f"{result.documents:,}"),
        ("windows", f"of {result.context} tokens, every {result.stride}"),
    ]


def _lambada_rows(result: Lambada) -> list[tuple[str, str]]:
    rows = [("accuracy", _share(result.correct, result.passages))]
    if result.correct_filtered is not None:
        rows.append(("stop words filtered", _share(result.correct_filtered, result.passages)))
    perplexity = ("perplexity", f"{result.perplexity:.4f}")
    return [*rows, perplexity, ("definition", result.definition)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.4f} ({part:,} of {whole:,})"
