"""Timing of forward passes: prefill, decoding, batches, and verification of draft tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gpt2np.generation.options import Draft, Options
from gpt2np.kernels.matmul import splits_exactly
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2, KVCache, last_token_indices

Work = Callable[[], object]

_SEED = 0
_TEXT = "Once upon a time there was a little boy who lived with his mother"
_TEXT_IDS = 16  # maximum length of the prompt; a vocabulary of bytes has 66 ids for the text


@dataclass(frozen=True)
class Timing:
    """Duration in seconds of each run of a function."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds of the median run."""
        return median(self.runs)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest run: the run least disturbed by other processes."""
        return min(self.runs)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest run."""
        return max(self.runs)

    def as_json(self) -> dict[str, float]:
        """Return the seconds of the median, fastest and slowest run, and the number of runs."""
        ends = {"fastest": self.fastest, "slowest": self.slowest}
        return {"seconds": self.median, **ends, "runs": len(self.runs)}


@dataclass(frozen=True)
class Effort:
    """Repetitions of a measurement: at least `runs` runs, for at least `seconds` seconds."""

    runs: int
    seconds: float


def seconds_of(work: Work) -> float:
    """Return the seconds that one run of `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def repeat(work: Work, effort: Effort) -> Timing:
    """Time repeated runs of `work`."""
    end = time.perf_counter() + effort.seconds
    runs: list[float] = []
    while len(runs) < effort.runs or time.perf_counter() < end:
        runs.append(seconds_of(work))
    return Timing(tuple(runs))


def alternate(works: Sequence[Work], rounds: int, effort: Effort) -> list[Timing]:
    """Time several functions alternately, so that disturbances affect all functions alike.

    In each round, every function runs once untimed, to warm up CPU caches and threads. Then the
    function is timed with `effort`.
    """
    runs: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seconds in zip(works, runs, strict=True):
            work()
            seconds += repeat(work, effort).runs
    return [Timing(tuple(seconds)) for seconds in runs]


@dataclass(frozen=True)
class Speed:
    """Timing of a pass that computes `tokens` new tokens for each of `sequences` sequences.

    `relative_time` is the median time divided by that of a pass over one token. For a text with
    draft tokens, it is divided by the median time of the text without draft tokens.
    """

    tokens: int
    sequences: int
    context: int  # cached tokens per sequence
    timing: Timing  # of the whole pass
    relative_time: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second in the median run, summed over all sequences."""
        return self.tokens * self.sequences / self.timing.median


_SETTLE_S = 10.0  # time limit of `settle`


def warm_up(model: GPT2) -> None:
    """Run a few passes, which pack the weights and fork the worker processes."""
    for _ in range(3):  # the second pass forks the processes
        model.forward([_random_ids(model, min(8, model.config.n_positions))])


def settle(model: GPT2, rows: int, work: Work) -> None:
    """Repeat `work` until the model has chosen how many processes share passes of `rows` tokens.

    Return at once if there is no choice.
    """
    if not splits_exactly(rows):
        return
    end = time.perf_counter() + _SETTLE_S
    while model.processes == "auto" and time.perf_counter() < end:
        work()
        if any(
            choice.is_settled and choice.min_rows <= rows <= (choice.max_rows or rows)
            for choice in model.rank_choices
        ):
            return


def time_prefill(model: GPT2, tokens: int, effort: Effort) -> Speed:
    """Time the prefill of a prompt with `tokens` tokens, including the next token's logits."""
    ids = _random_ids(model, tokens)
    last = last_token_indices([ids])

    def work() -> None:
        model.forward([ids], [model.new_cache()], logits_indices=last)

    settle(model, tokens, work)
    return Speed(tokens, 1, 0, repeat(work, effort))


def fill_caches(model: GPT2, context: int, count: int) -> list[KVCache]:
    """Return `count` KV caches, each filled with a sequence of `context` tokens."""
    caches = [model.new_cache() for _ in range(count)]
    if context:
        sequences = [_random_ids(model, context)] * count
        model.forward(sequences, caches, logits_indices=last_token_indices(sequences))
    return caches


def time_decode(model: GPT2, cache: KVCache, effort: Effort) -> Speed:
    """Time a decode step of one sequence, including the selection of the next token."""
    step = _decode_step(model, [cache])
    settle(model, 1, step)
    return Speed(1, 1, cache.length, alternate([step], 1, effort)[0])


def time_batches(
    model: GPT2, sizes: Sequence[int], context: int, rounds: int, effort: Effort
) -> list[Speed]:
    """Time decode steps of each batch size, alternating with decode steps of one sequence."""
    caches = fill_caches(model, context, max(sizes))
    steps = [_decode_step(model, caches[:size]) for size in (1, *sizes)]
    for size, step in zip((1, *sizes), steps, strict=True):
        settle(model, size, step)
    one, *timings = alternate(steps, rounds, effort)
    return [
        Speed(1, size, context, timing, timing.median / one.median)
        for size, timing in zip(sizes, timings, strict=True)
    ]


def time_draft(model: GPT2, tokens: int, context: int, rounds: int, effort: Effort) -> Speed:
    """Time a pass that verifies `tokens` draft tokens, after `context` cached tokens."""
    caches = fill_caches(model, context, 1)
    steps = [_decode_step(model, caches, count) for count in (1, tokens)]
    settle(model, tokens, steps[1])
    one, timing = alternate(steps, rounds, effort)
    return Speed(tokens, 1, context, timing, timing.median / one.median)


def time_text(lm: LanguageModel, tokens: int, rounds: int) -> tuple[Speed, Speed]:
    """Time the sampling of texts without and with draft tokens; each round has a new seed."""
    runs: dict[Draft, list[float]] = {"none": [], "auto": []}
    prompt = lm.tokenizer.encode(_TEXT)[:_TEXT_IDS]
    for seed in range(-1, rounds):  # seed -1 is a warm-up
        for draft, seconds in runs.items():
            options: Options = {"seed": max(0, seed), "draft": draft, "ignore_eos": True}
            options["max_new_tokens"] = tokens
            completion = lm.generate(prompt, **options)
            seconds += [completion.seconds] * (seed >= 0)
    without, with_drafts = (Timing(tuple(seconds)) for seconds in runs.values())
    n_ids, relative_time = len(completion.ids), with_drafts.median / without.median
    return Speed(n_ids, 1, 0, without), Speed(n_ids, 1, 0, with_drafts, relative_time)


def _random_ids(model: GPT2, count: int) -> list[int]:
    rng = np.random.default_rng(_SEED)
    return list(map(int, rng.integers(0, model.config.vocab_size, count)))


def _decode_step(model: GPT2, caches: Sequence[KVCache], tokens: int = 1) -> Callable[[], None]:
    """Return a function that decodes `tokens` tokens per sequence, then truncates the KV caches."""
    new = [_random_ids(model, tokens)] * len(caches)
    lengths = [cache.length for cache in caches]

    def step() -> None:
        model.forward(new, caches).argmax(-1)
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)

    return step
