"""How fast a model in this process is: prompts, single tokens, several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.benchmark.timing import Effort, Timing, alternate, repeat
from gpt2np.model import GPT2, KVCache, last_token_indices

_SEED = 0


@dataclass(frozen=True)
class Speed:
    """How long something takes that computes `tokens` tokens for `sequences` sequences each.

    Attributes:
        tokens: new tokens of one sequence.
        sequences: how many at once.
        context: tokens that each sequence has seen before.
        timing: seconds of the whole call.
        times_of_one: seconds of the call, of those with one token of one sequence; measured in
            turns. None where it was not.
    """

    tokens: int
    sequences: int
    context: int
    timing: Timing
    times_of_one: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences together per second, in the middle run."""
        return self.rate(self.timing.median)

    def rate(self, seconds: float) -> float:
        """Tokens per second of a call that takes so long."""
        return self.tokens * self.sequences / seconds


def warm_up(model: GPT2) -> None:
    """Have all weights laid out, and the processes forked, which takes the second pass."""
    for _ in range(3):
        model.forward([_ids(model, min(8, model.config.n_positions))])


def prefill(model: GPT2, tokens: int, effort: Effort) -> Speed:
    """A prompt of so many tokens, up to the logits for what follows."""
    ids = _ids(model, tokens)
    rows = last_token_indices([ids])
    timing = repeat(lambda: model.forward([ids], [model.new_cache()], logits_indices=rows), effort)
    return Speed(tokens, 1, 0, timing)


def filled_caches(model: GPT2, context: int, count: int) -> list[KVCache]:
    """`count` caches, each of a sequence of `context` tokens."""
    caches = [model.new_cache() for _ in range(count)]
    if context:
        sequences = [_ids(model, context)] * count
        model.forward(sequences, caches, logits_indices=last_token_indices(sequences))
    return caches


def decode(model: GPT2, cache: KVCache, effort: Effort) -> Speed:
    """One token more for the sequence of a cache, with the choice of the next."""
    step = _step(model, [cache])
    return Speed(1, 1, cache.length, alternate([step], 1, effort)[0])


def batches(
    model: GPT2, sizes: Sequence[int], context: int, rounds: int, effort: Effort
) -> list[Speed]:
    """A step of several sequences together, each size in turns with a step of one."""
    caches = filled_caches(model, context, max(sizes))
    steps = [_step(model, caches[:size]) for size in (1, *sizes)]
    one, *timings = alternate(steps, rounds, effort)
    return [
        Speed(1, size, context, timing, timing.median / one.median)
        for size, timing in zip(sizes, timings, strict=True)
    ]


def several_tokens(model: GPT2, tokens: int, context: int, rounds: int, effort: Effort) -> Speed:
    """Several tokens of one sequence in one call, with logits for each, as drafts are checked."""
    caches = filled_caches(model, context, 1)
    steps = [_step(model, caches, count) for count in (1, tokens)]
    one, timing = alternate(steps, rounds, effort)
    return Speed(tokens, 1, context, timing, timing.median / one.median)


def _ids(model: GPT2, count: int) -> list[int]:
    chosen = np.random.default_rng(_SEED).integers(0, model.config.vocab_size, count)
    return [int(number) for number in chosen]


def _step(model: GPT2, caches: Sequence[KVCache], tokens: int = 1) -> Callable[[], None]:
    """`tokens` more for each cache, and the likeliest next ids; then the caches are as before."""
    new = [_ids(model, tokens)] * len(caches)
    lengths = [cache.length for cache in caches]

    def step() -> None:
        model.forward(new, caches).argmax(-1)
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)

    return step
