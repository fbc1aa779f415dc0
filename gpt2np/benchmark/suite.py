"""The benchmark suite: all measurements of one model, and how often each is repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2np.benchmark.counts import weight_bytes_per_token
from gpt2np.benchmark.machine import Limits, Machine, describe_machine, measure_limits
from gpt2np.benchmark.process import Memory, measure_memory, time_to_first_token
from gpt2np.benchmark.timing import (
    Effort,
    Speed,
    Timing,
    fill_caches,
    time_batches,
    time_decode,
    time_draft,
    time_prefill,
    warm_up,
)
from gpt2np.hub import VOCABULARY_FILES, ModelSource
from gpt2np.model import GPT2, GPT2Config

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Cases and repetitions of a benchmark.

    Attributes:
        prompt_lengths: tokens of the prompts to prefill.
        context_lengths: cached tokens of the decode steps.
        batch_sizes: sequences per batch.
        batch_context: cached tokens of each sequence of a batch.
        draft_tokens: draft tokens verified in one pass.
        draft_context: cached tokens before the draft tokens.
        limit_effort, prefill_effort, decode_effort: repetitions of a machine limit, a prefill, a
            decode step.
        turn_effort: repetitions per turn where cases alternate.
        rounds: turns of each alternating case.
        starts: fresh processes to start.
    """

    prompt_lengths: Sequence[int]
    context_lengths: Sequence[int]
    batch_sizes: Sequence[int]
    batch_context: int
    draft_tokens: int
    draft_context: int
    limit_effort: Effort
    prefill_effort: Effort
    decode_effort: Effort
    turn_effort: Effort
    rounds: int
    starts: int

    @property
    def n_measurements(self) -> int:
        """Number of times that `run_suite` reports progress."""
        return len(self.prompt_lengths) + len(self.context_lengths) + 6


@dataclass(frozen=True)
class Results:
    """Results of a plan; `start` is None for a model without a vocabulary."""

    model: str
    config: GPT2Config
    parameters: int
    dtype: str
    machine: Machine
    limits: Limits
    prefill: list[Speed]
    decode: list[Speed]
    batches: list[Speed]
    draft: Speed
    start: Timing | None
    memory: Memory

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights that decoding one token reads."""
        return weight_bytes_per_token(self.config, np.dtype(self.dtype).itemsize)


def plan_for(n_positions: int, quick: bool = False) -> Plan:
    """Return a plan that fits a model's context; a quick plan has fewer repetitions."""
    draft_tokens = min(8, n_positions)
    return Plan(
        prompt_lengths=_clip(n_positions, 64, 512, 1000),
        context_lengths=_clip(n_positions - 1, 64, n_positions // 2, 900),
        batch_sizes=(2, 4, 8, 16),
        batch_context=min(64, n_positions - 1),
        draft_tokens=draft_tokens,
        draft_context=min(200, n_positions - draft_tokens),
        limit_effort=Effort(3, 0.1) if quick else Effort(5, 0.4),
        prefill_effort=Effort(1, 0.3) if quick else Effort(3, 1.5),
        decode_effort=Effort(7, 0.2) if quick else Effort(20, 1),
        turn_effort=Effort(5, 0.1) if quick else Effort(7, 0.1),
        rounds=1 if quick else 3,
        starts=1 if quick else 3,
    )


def _clip(limit: int, *lengths: int) -> tuple[int, ...]:
    return tuple(sorted({min(length, limit) for length in lengths}))


def run_suite(
    source: ModelSource, dtype: str, threads: int, plan: Plan, on_progress: OnProgress
) -> Results:
    """Run a plan; `on_progress` receives the name of each measurement before it starts."""
    on_progress("limits of the machine")
    machine = describe_machine(threads)  # first, before the benchmark adds to the load
    model = GPT2.from_folder(source.folder, dtype)
    model.processes = threads  # as the commands do
    nbytes = weight_bytes_per_token(model.config, model.dtype.itemsize)
    limits = measure_limits(nbytes, threads, dtype, plan.limit_effort)
    warm_up(model)
    prefill = _time_prefills(model, plan, on_progress)
    decode = _time_decodes(model, plan, on_progress)
    on_progress("batches")
    batches = time_batches(
        model, plan.batch_sizes, plan.batch_context, plan.rounds, plan.turn_effort
    )
    on_progress("several tokens in one call")
    draft = time_draft(model, plan.draft_tokens, plan.draft_context, plan.rounds, plan.turn_effort)
    on_progress("start")
    start = _time_start(source.folder, dtype, plan)
    on_progress("memory")
    memory = measure_memory(source.folder, dtype)
    on_progress("limits of the machine")  # once more, as the machine's load may have changed
    return Results(
        source.name,
        model.config,
        model.weights.parameters,
        dtype,
        machine,
        limits.best_of(measure_limits(nbytes, threads, dtype, plan.limit_effort)),
        prefill,
        decode,
        batches,
        draft,
        start,
        memory,
    )


def _time_prefills(model: GPT2, plan: Plan, on_progress: OnProgress) -> list[Speed]:
    speeds = []
    for tokens in plan.prompt_lengths:
        on_progress(f"prefill of {tokens} tokens")
        speeds.append(time_prefill(model, tokens, plan.prefill_effort))
    return speeds


def _time_decodes(model: GPT2, plan: Plan, on_progress: OnProgress) -> list[Speed]:
    """Time the longest context first; the same cache is then truncated for the shorter ones."""
    speeds: list[Speed] = []
    [cache] = fill_caches(model, max(plan.context_lengths), 1)
    for context in sorted(plan.context_lengths, reverse=True):
        on_progress(f"decode at context {context}")
        cache.truncate(context)
        speeds.insert(0, time_decode(model, cache, plan.decode_effort))
    return speeds


def _time_start(folder: Path, dtype: str, plan: Plan) -> Timing | None:
    if VOCABULARY_FILES.missing_in(folder):
        return None
    return time_to_first_token(folder, dtype, plan.starts)
