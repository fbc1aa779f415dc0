"""The decode loop: sequences grow by one id a step, all of them in one forward pass."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gpt2np.errors import CheckpointError, ContextLengthError, InvalidArgumentError
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampler import next_id
from gpt2np.model import GPT2, KVCache, last_rows

FinishReason = Literal["eos", "length", "stop", "cancelled"]


@dataclass
class RunningSequence:
    """One sequence that is being generated, with all that belongs to it alone.

    Attributes:
        prompt: the ids it starts from, at least one.
        options: how it goes on; `seed` must be set.
        end_ids: ids that end it.
        cache: keys and values of the ids that have been through the model.
        rng: its own random stream.
        ids: what has been generated, including the id that ended it.
        finish_reason: None while it runs; "eos" after one of `end_ids`, "length" at
            `max_new_tokens` or when the context is full, "stop" or "cancelled" if its owner ends
            it.
    """

    prompt: Sequence[int]
    options: GenerationOptions
    end_ids: Collection[int]
    cache: KVCache
    rng: np.random.Generator
    ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def pending(self) -> list[int]:
        """The ids that have not been through the model yet."""
        return [*self.prompt, *self.ids][self.cache.length :]


def start_sequence(
    model: GPT2, prompt: Sequence[int], options: GenerationOptions, end_ids: Collection[int]
) -> RunningSequence:
    """A sequence that is ready for its first step; nothing is computed yet.

    Raises:
        ContextLengthError: the prompt is longer than the model's context.
        InvalidArgumentError: the prompt is empty.
    """
    if not prompt:
        raise InvalidArgumentError("the prompt has no ids; start from the end-of-text id instead")
    if len(prompt) > model.config.n_positions:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, more than the model's context of "
            f"{model.config.n_positions}; shorten it to at most {model.config.n_positions} tokens"
        )
    rng = np.random.default_rng(options.seed)
    return RunningSequence(prompt, options, end_ids, model.new_cache(), rng)


def decode_step(model: GPT2, running: Sequence[RunningSequence]) -> None:
    """Give each of the `running` sequences, none of them finished, its next id.

    Raises:
        CheckpointError: the logits are infinite or not numbers.
    """
    pending = [sequence.pending for sequence in running]
    caches = [sequence.cache for sequence in running]
    with np.errstate(over="ignore", invalid="ignore"):  # it is told below, by name
        logits = model.forward(pending, caches, rows=last_rows(pending))  # (S, V)
    if not np.isfinite(logits.max(-1)).all():
        raise CheckpointError(f"the model's logits are not numbers: {_cause(model)}")
    for sequence, row in zip(running, logits, strict=True):
        sequence.ids.append(next_id(row, sequence.options, sequence.rng))
        sequence.finish_reason = _finish_reason(sequence, model.config.n_positions)


def _cause(model: GPT2) -> str:
    spoiled = [name for name, array in model.weights.items() if not np.isfinite(array).all()]
    if spoiled:
        return f"NaN or infinite numbers are stored in {', '.join(spoiled[:3])}" + (
            f" and {len(spoiled) - 3} more tensors" if len(spoiled) > 3 else ""
        )
    return "they grow beyond its dtype; its weights or config are damaged"


def _finish_reason(sequence: RunningSequence, n_positions: int) -> FinishReason | None:
    if sequence.ids[-1] in sequence.end_ids:
        return "eos"
    full = len(sequence.prompt) + len(sequence.ids) > n_positions
    return "length" if full or len(sequence.ids) == sequence.options.max_new_tokens else None
