"""All measurements of one model, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2np.benchmark.counts import weight_bytes_per_token
from gpt2np.benchmark.machine import Limits, Machine, describe_machine, measure_limits
from gpt2np.benchmark.measure import (
    Speed,
    batches,
    decode,
    filled_caches,
    prefill,
    several_tokens,
    warm_up,
)
from gpt2np.benchmark.process import Memory, memory, start
from gpt2np.benchmark.timing import Effort, Timing
from gpt2np.hub import VOCABULARY_FILES, ModelSource
from gpt2np.model import GPT2, GPT2Config

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured and how often.

    Attributes:
        prompts: tokens of the prompts.
        contexts: tokens before the one that is decoded.
        batch_sizes: sequences that are decoded together.
        batch_context: tokens of each of them.
        drafted: tokens of one sequence in one call.
        draft_context: tokens before them.
        limit, prompt, step: the effort for a limit of the machine, a prompt, a decoded token.
        turn: the effort for a turn where several are compared.
        rounds: the turns of each of them.
        starts: fresh processes.
    """

    prompts: Sequence[int]
    contexts: Sequence[int]
    batch_sizes: Sequence[int]
    batch_context: int
    drafted: int
    draft_context: int
    limit: Effort
    prompt: Effort
    step: Effort
    turn: Effort
    rounds: int
    starts: int

    @property
    def parts(self) -> int:
        """How many things `run_suite` will tell of."""
        return len(self.prompts) + len(self.contexts) + 6


@dataclass(frozen=True)
class Results:
    """What came of a plan; `start` is None if there is no vocabulary to start with."""

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
        """Bytes of weights that a decoded token reads."""
        return weight_bytes_per_token(self.config, np.dtype(self.dtype).itemsize)


def plan_for(n_positions: int, quick: bool = False) -> Plan:
    """A plan that fits into the context of a model; a quick one is less sure of its numbers."""
    drafted = min(8, n_positions)
    return Plan(
        prompts=_at_most(n_positions, 64, 512, 1000),
        contexts=_at_most(n_positions - 1, 64, n_positions // 2, 900),
        batch_sizes=(2, 4, 8, 16),
        batch_context=min(64, n_positions - 1),
        drafted=drafted,
        draft_context=min(200, n_positions - drafted),
        limit=Effort(3, 0.1) if quick else Effort(5, 0.4),
        prompt=Effort(1, 0.3) if quick else Effort(3, 1.5),
        step=Effort(7, 0.2) if quick else Effort(20, 1),
        turn=Effort(5, 0.1) if quick else Effort(7, 0.1),
        rounds=1 if quick else 3,
        starts=1 if quick else 3,
    )


def _at_most(limit: int, *numbers: int) -> tuple[int, ...]:
    return tuple(sorted({min(number, limit) for number in numbers}))


def run_suite(source: ModelSource, dtype: str, threads: int, plan: Plan, tell: Tell) -> Results:
    """Measure; `tell` gets the name of each part before it begins.

    The limits are measured at the beginning and at the end: others may use the machine.
    """
    tell("limits of the machine")
    machine = describe_machine(threads)  # before this adds to its load
    model = GPT2.from_folder(source.folder, dtype)
    model.processes = threads  # as the commands do
    nbytes = weight_bytes_per_token(model.config, model.dtype.itemsize)
    limits = measure_limits(nbytes, threads, dtype, plan.limit)
    warm_up(model)
    prefilled, decoded = _prefill(model, plan, tell), _decode(model, plan, tell)
    tell("batches")
    batched = batches(model, plan.batch_sizes, plan.batch_context, plan.rounds, plan.turn)
    tell("several tokens in one call")
    draft = several_tokens(model, plan.drafted, plan.draft_context, plan.rounds, plan.turn)
    tell("start")
    started = _start(source.folder, dtype, plan)
    tell("memory")
    used = memory(source.folder, dtype)
    tell("limits of the machine")
    return Results(
        source.name,
        model.config,
        model.weights.parameters,
        dtype,
        machine,
        limits.or_better(measure_limits(nbytes, threads, dtype, plan.limit)),
        prefilled,
        decoded,
        batched,
        draft,
        started,
        used,
    )


def _prefill(model: GPT2, plan: Plan, tell: Tell) -> list[Speed]:
    speeds = []
    for tokens in plan.prompts:
        tell(f"prefill of {tokens} tokens")
        speeds.append(prefill(model, tokens, plan.prompt))
    return speeds


def _decode(model: GPT2, plan: Plan, tell: Tell) -> list[Speed]:
    """The longest context first, so that it need only be cut for the others."""
    speeds: list[Speed] = []
    [cache] = filled_caches(model, max(plan.contexts), 1)
    for context in sorted(plan.contexts, reverse=True):
        tell(f"decode at context {context}")
        cache.truncate(context)
        speeds.insert(0, decode(model, cache, plan.step))
    return speeds


def _start(folder: Path, dtype: str, plan: Plan) -> Timing | None:
    return None if VOCABULARY_FILES.missing_in(folder) else start(folder, dtype, plan.starts)
