"""The caller's own code in the decode loop: logits processors, stopping criteria and more.

Processors and criteria have the signatures of `transformers`, but for one sequence at a time: ids
are a list, and logits an array (V,).

    def no_digits(ids, logits):  # a logits processor
        logits[digit_ids] = -np.inf
        return logits

    lm.generate("The year was", logits_processor=no_digits)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import Options
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.kernels.array import Array, real_array
from gpt2np.runtime.context import Chain, Hook

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.generation.prefix import Prefix

__all__ = ["Callbacks", "GeneratedToken", "LogitsProcessor", "StoppingCriterion"]

LogitsProcessor: TypeAlias = Callable[[list[int], Array], ArrayLike]
"""A function (ids, logits) → logits. `ids` are those of prompt and continuation so far."""

StoppingCriterion: TypeAlias = Callable[[list[int], Array], bool]
"""A function (ids, logits) → whether the sequence ends. `ids` end with the new token's id, which
was selected from `logits`, the unprocessed logits."""


@dataclass(frozen=True)
class GeneratedToken(TokenLogprob):
    """A new token: its id, log probability, text, and the most likely ids at its position.

    `index` is the index of the continuation among all continuations of the call, from 0.
    """

    text: str = ""
    index: int = 0


@dataclass(frozen=True)
class Callbacks:
    """The caller's functions for one sequence, and the caller's constraint.

    The functions are called on the thread that generates; with asyncio, on a thread of the model.

    Attributes:
        logits_processor: functions applied in order, after penalties and constraints of the options
            and before temperature and filters. A token that the options forbid stays forbidden.
        stopping_criteria: functions; if one returns True for a token, the sequence ends there.
        on_token: receives each new token.
        interventions: a hook for all forward passes; see `gpt2np.interp`. If the hook has a method
            `after_prompt`, its return value replaces the hook once the prompt is computed.
        constraint: which tokens may come next; see `gpt2np.constraints.Constraint`.
    """

    logits_processor: tuple[LogitsProcessor, ...] = ()
    stopping_criteria: tuple[StoppingCriterion, ...] = ()
    on_token: Callable[[GeneratedToken], object] | None = None
    interventions: Chain | None = None
    constraint: Constraint | None = None

    def process(self, ids: Sequence[int], logits: Array) -> Array:
        """Apply the logits processors to logits (V,).

        Raises:
            InvalidArgumentError: a processor does not return real numbers of the shape (V,), or the
                logits of the allowed tokens have NaN or +inf, or are all -inf.
        """
        is_forbidden = np.isneginf(logits)
        try:
            for processor in self.logits_processor:
                logits = real_array(processor(list(ids), logits.copy()), logits)
            logits = np.where(is_forbidden, -np.inf, logits)
            if not np.isfinite(logits.max()):
                raise ValueError(f"{logits.max()} as the highest logit of an allowed token")
        except ValueError as error:
            message = f"a logits_processor must return logits of shape {logits.shape}; got: {error}"
            raise InvalidArgumentError(message, param="logits_processor") from error
        return logits


class GenerateArguments(Options, total=False):
    """The keyword arguments of `LanguageModel.generate`: options, callbacks, a prefix, and
    the special tokens that a text may have.
    """

    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None
    on_token: Callable[[GeneratedToken], object] | None
    interventions: Hook | Sequence[Hook] | None
    constraint: Constraint | None
    prefix: Prefix | None
    allowed_special: Collection[str] | Literal["all"] | None
