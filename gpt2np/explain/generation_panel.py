"""The next tokens one by one, with what a KV cache saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.benchmark.counts import prefill_flops
from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.explain.chart import Line, line_chart
from gpt2np.explain.html import formula, panel, source, table, token
from gpt2np.explain.numbers import Numbers, rounded
from gpt2np.explain.run import Run
from gpt2np.explain.work import step_flops
from gpt2np.interp.lens import top_k
from gpt2np.model import KVCache, last_token_indices
from gpt2np.model.model import GPT2
from gpt2np.model.ops import softmax
from gpt2np.runtime.kv_cache import cache_nbytes

Array = NDArray[Any]

TOP = 5
_EFFORT = Effort(runs=2, seconds=0.0)


@dataclass(frozen=True)
class Step:
    """One step of a continuation.

    Attributes:
        id: the likeliest token, which is taken.
        logits: (V), with the cache.
        difference: the largest to the logits without a cache.
        seen: how many tokens they depend on.
        seconds, seconds_without: with the cache and without.
    """

    id: int
    logits: Array
    difference: float
    seen: int
    seconds: float
    seconds_without: float


def generate(run: Run, most: int) -> list[Step]:
    """Continue the window greedily, each step with and without a cache.

    It ends early where the model's context or, with an end-of-text id, the text does.
    """
    ids, cache, steps = list(run.ids), run.model.new_cache(), list[Step]()
    for _ in range(min(most, run.config.n_positions - len(ids) + 1)):
        steps.append(_step(run.model, ids, cache))
        ids.append(steps[-1].id)
        if ids[-1] in run.lm.eos_token_ids:
            break
    return steps


def _step(model: GPT2, ids: list[int], cache: KVCache) -> Step:
    held = cache.length

    def with_cache() -> Array:
        cache.truncate(held)
        return model.forward([ids[held:]], [cache], logits_indices=last_token_indices([ids[held:]]))

    def without_cache() -> Array:
        return model.forward([ids], logits_indices=last_token_indices([ids]))

    seconds, seconds_without = (
        repeat(work, _EFFORT).fastest for work in (with_cache, without_cache)
    )
    logits: Array = with_cache()[0]
    difference = float(np.abs(logits - without_cache()[0]).max())
    return Step(int(logits.argmax()), logits, difference, len(ids), seconds, seconds_without)


def generation_panel(run: Run, numbers: Numbers, steps: list[Step]) -> str:
    """The panel's markup."""
    _add_numbers(run, numbers, steps)
    continuation = "<wbr>".join(token(run.bytes_of(step.id)) for step in steps)
    says = (
        "A model gives one token at a time: the likeliest is put behind the text, and the model is "
        "asked again. The keys and values of the tokens before never change, so they are kept: "
        "then only the new token has to go through the blocks. Below, every step is also done "
        "without that cache, from the start, and must give the same."
    )
    lines = [
        Line("with cache", [1000 * step.seconds for step in steps]),
        Line("without cache", [1000 * step.seconds_without for step in steps]),
    ]
    names = [str(at + 1) for at in range(len(steps))]
    body = [
        formula("cache bytes = 2 · layers · tokens · channels · 4"),
        source(GPT2.forward, KVCache, cache_nbytes, prefill_flops, step_flops),
        f'<p class="continuation">{continuation}</p>',
        _alternatives(run, numbers, len(steps)),
        _work(numbers, steps),
        line_chart(lines, names, "Milliseconds of each step") if len(steps) > 1 else "",
        f'<p class="hint">Times are of the faster of two, measured while this page was made. '
        f"{_saving(numbers, steps)}</p>",
    ]
    return panel("generation", "Token after token", says, "\n".join(body))


def _add_numbers(run: Run, numbers: Numbers, steps: list[Step]) -> None:
    config, seen = run.config, [step.seen for step in steps]
    logits = np.array([step.logits for step in steps])
    best = top_k(logits, min(TOP, config.vocab_size))
    probabilities = softmax(logits.astype(np.float64))
    without = [prefill_flops(config, n) for n in seen]
    numbers.add("step.ids", best)
    numbers.add("step.probability", np.take_along_axis(probabilities, best, 1))
    numbers.add("step.difference", np.array([step.difference for step in steps]))
    numbers.add("step.bytes", np.array([cache_nbytes(config, n) for n in seen]))
    numbers.add("step.flops", np.array([without[0], *(step_flops(config, n) for n in seen[1:])]))
    numbers.add("step.flops_without", np.array(without))


def _alternatives(run: Run, numbers: Numbers, steps: int) -> str:
    best = numbers.arrays["step.ids"]
    rows = [
        (
            str(step + 1),
            *(
                f"{token(run.bytes_of(int(number)))} "
                f"{numbers.show('step.probability', step, place, as_='p')}"
                for place, number in enumerate(best[step])
            ),
        )
        for step in range(steps)
    ]
    head = ("step", "taken", *("instead" for _ in range(best.shape[1] - 1)))
    return table(head, rows, "Each step’s likeliest tokens, with their probabilities")


def _work(numbers: Numbers, steps: list[Step]) -> str:
    rows = [
        (
            str(at + 1),
            str(step.seen),
            numbers.show("step.bytes", at, as_="n"),
            numbers.show("step.flops", at, as_="n"),
            numbers.show("step.flops_without", at, as_="n"),
            f"{1000 * step.seconds:.2f}",
            f"{1000 * step.seconds_without:.2f}",
            numbers.show("step.difference", at, as_="2g"),
        )
        for at, step in enumerate(steps)
    ]
    head = (
        "step",
        "tokens seen",
        "cache, bytes",
        "operations with it",
        "without",
        "ms with it",
        "without",
        "largest difference of a logit",
    )
    return table(head, rows, "How the cache grows, and what it saves")


def _saving(numbers: Numbers, steps: list[Step]) -> str:
    flops, without = (numbers.arrays[name].sum() for name in ("step.flops", "step.flops_without"))
    seconds = sum(step.seconds for step in steps)
    longer = sum(step.seconds_without for step in steps)
    return (
        f"In all, the cache saved {rounded(100 * (1 - flops / without), 'f0')} % of the "
        f"operations, and the steps took {1000 * seconds:.1f} ms instead of {1000 * longer:.1f}."
    )
