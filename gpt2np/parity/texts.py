"""The verdict on another engine's greedy texts: equal, both right, or a bug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.interp.trace import as_gpt2
from gpt2np.kernels.array import common_length
from gpt2np.model import GPT2
from gpt2np.parity.check import MARGIN, PromptCheck, as_float64, check_model
from gpt2np.parity.reference import Reference

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel


@dataclass(frozen=True)
class TextReport:
    """Where a greedy continuation first differs from the reference one.

    Attributes:
        step: the first token that differs, counted from 0; None if the continuations agree.
        gap: the exact difference of the two best logits at that step.
        tolerance: the largest gap that rounding can close at that step.
    """

    step: int | None = None
    gap: float = 0.0
    tolerance: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Whether both continuations are correct, because rounding decides between two tokens."""
        return self.step is None or self.gap <= self.tolerance

    def __str__(self) -> str:
        if self.step is None:
            return "equal"
        verdict = "both are right" if self.is_rounding else "a bug: compare arrays"
        numbers = f"gap {self.gap:.2g}, rounding may be {self.tolerance:.2g}"
        return f"differs from token {self.step} on; {numbers}: {verdict}"


@np.errstate(all="ignore")
def check_texts(
    reference: Reference,
    continuations: Mapping[str, Sequence[int]],
    model: GPT2 | LanguageModel,
    dtype: str = "float32",
) -> dict[str, TextReport]:
    """Compare greedy continuations with the reference ones, up to the end of the shorter one.

    Raises:
        InvalidArgumentError: there is nothing to compare, a prompt is unknown, a continuation is
            not a list of token ids, or the reference arrays are of another model.
    """
    model = as_gpt2(model)
    weights = as_float64(model)
    check_model(reference, model.config, weights)
    if not continuations:
        raise InvalidArgumentError(
            "the tested engine has no token ids; give those of at least one prompt"
        )
    reports = {}
    for prompt, ids in continuations.items():
        if prompt not in reference.greedy_ids:
            raise InvalidArgumentError(
                f"no prompt {prompt!r}; there are {', '.join(reference.ids)}"
            )
        is_list = isinstance(ids, Sequence) and len(ids) > 0 and all(map(is_integer, ids))
        check_argument(is_list, prompt, ids, "a list of at least one token id")
        right = reference.greedy_ids[prompt]
        if not right:
            raise InvalidArgumentError(
                f"the reference file has no continuation of prompt {prompt!r}; record the file "
                "with max_new_tokens of at least 1"
            )
        reports[prompt] = TextReport()
        step = common_length(right, ids)
        if step < min(len(right), len(ids)):
            before = [*reference.ids[prompt], *right[:step]]
            logits, exact = (
                PromptCheck(weights, model.config, before, {}, name).rounded_pass()["logits"][-1]
                for name in (dtype, "float64")
            )
            tolerance = 2 * MARGIN * float(np.abs(logits - exact).max())
            reports[prompt] = TextReport(step, reference.gaps[prompt][step], tolerance)
    return reports
