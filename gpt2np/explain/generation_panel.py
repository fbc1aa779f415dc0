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
from gpt2np.model import KVCache
from gpt2np.model.cache import cache_nbytes
from gpt2np.model.functions import softmax
from gpt2np.model.gpt2 import GPT2

Array = NDArray[Any]

TOP = 5
_EFFORT = Effort(runs=3, seconds=0.0)


@dataclass(frozen=True)
class Generated:
    """The continuation, step by step; the likeliest token is taken each time.

    Attributes:
        ids: the chosen ids, (steps,).
        logits: (steps, V), with the cache.
        difference: (steps,), the largest difference to the logits without a cache.
        seen: tokens that the step's logits depend on, (steps,).
        with_cache, without_cache: seconds of each step.
    """

    ids: list[int]
    logits: Array
    difference: Array
    seen: list[int]
    with_cache: list[float]
    without_cache: list[float]


def generate(run: Run, steps: int) -> Generated:
    """Continue the window greedily, and time every step with and without a cache.

    It ends early where the model's context or, with an end-of-text id, the text does.
    """
    model, ids, cache = run.model, list(run.ids), run.model.new_cache()
    found = Generated([], np.empty((0, run.config.vocab_size)), np.empty(0), [], [], [])
    rows, differences = [], []
    for _ in range(min(steps, run.config.n_positions - len(ids) + 1)):
        before = cache.length

        def cached(before: int = before) -> Array:
            cache.truncate(before)
            new = ids[before:]
            return model.forward([new], [cache], rows=[len(new) - 1])

        def whole() -> Array:
            return model.forward([ids], rows=[len(ids) - 1])

        found.with_cache.append(repeat(cached, _EFFORT).median)
        found.without_cache.append(repeat(whole, _EFFORT).median)
        rows.append(cached()[0])
        differences.append(np.abs(rows[-1] - whole()[0]).max())
        found.seen.append(len(ids))
        found.ids.append(int(rows[-1].argmax()))
        if found.ids[-1] in run.lm.end_ids:
            break
        ids.append(found.ids[-1])
    return Generated(
        found.ids,
        np.array(rows),
        np.array(differences),
        found.seen,
        found.with_cache,
        found.without_cache,
    )


def generation_panel(run: Run, numbers: Numbers, generated: Generated) -> str:
    """The panel's markup."""
    config = run.config
    best = np.argsort(-generated.logits, axis=1, kind="stable")[:, :TOP]
    probabilities = softmax(generated.logits.astype(np.float64))
    numbers.add("step.logits", generated.logits)
    numbers.add("step.ids", best)
    numbers.add("step.probability", np.take_along_axis(probabilities, best, 1))
    numbers.add("step.difference", generated.difference)
    numbers.add("step.bytes", np.array([cache_nbytes(config, seen) for seen in generated.seen]))
    with_cache = [step_flops(config, seen) for seen in generated.seen]
    with_cache[0] = prefill_flops(config, generated.seen[0])
    numbers.add("step.flops", np.array(with_cache))
    numbers.add(
        "step.flops_without", np.array([prefill_flops(config, seen) for seen in generated.seen])
    )
    continuation = "".join(token(run.bytes_of(number)) for number in generated.ids)
    says = (
        "A model gives one token at a time: the likeliest is put behind the text, and the model is "
        "asked again. The keys and values of the tokens before never change, so they are kept: "
        "then only the new token has to go through the blocks. Below, every step is also done "
        "without that cache, from the start, and must give the same."
    )
    lines = [
        Line("without cache", [1000 * s for s in generated.without_cache]),
        Line("with cache", [1000 * s for s in generated.with_cache]),
    ]
    steps = [str(at + 1) for at in range(len(generated.ids))]
    body = [
        formula("cache bytes = 2 · layers · tokens · channels · 4"),
        source(GPT2.forward, KVCache, cache_nbytes, prefill_flops, step_flops),
        f'<p class="continuation">{continuation}</p>',
        _alternatives(run, numbers, generated, best),
        _work(numbers, generated),
        line_chart(lines, steps, "Milliseconds of each step") if len(steps) > 1 else "",
        f'<p class="hint">Times are medians of three, measured while this page was made. '
        f"{_saving(numbers, generated)}</p>",
    ]
    return panel("generation", "Token after token", says, "\n".join(body))


def _alternatives(run: Run, numbers: Numbers, generated: Generated, best: Array) -> str:
    rows = [
        (
            str(step + 1),
            *(
                f"{token(run.bytes_of(int(number)))} "
                f"{numbers.show('step.probability', step, place, as_='p')}"
                for place, number in enumerate(best[step])
            ),
        )
        for step in range(len(generated.ids))
    ]
    head = ("step", "taken", *("instead" for _ in range(best.shape[1] - 1)))
    return table(head, rows, "Each step’s likeliest tokens, with their probabilities")


def _work(numbers: Numbers, generated: Generated) -> str:
    rows = [
        (
            str(step + 1),
            f"{generated.seen[step]}",
            numbers.show("step.bytes", step, as_="n"),
            numbers.show("step.flops", step, as_="n"),
            numbers.show("step.flops_without", step, as_="n"),
            f"{1000 * generated.with_cache[step]:.2f}",
            f"{1000 * generated.without_cache[step]:.2f}",
            numbers.show("step.difference", step, as_="2g"),
        )
        for step in range(len(generated.ids))
    ]
    head = (
        "step",
        "tokens seen",
        "cache, bytes",
        "operations with cache",
        "without",
        "ms with cache",
        "without",
        "largest difference of a logit",
    )
    return table(head, rows, "The cache grows, and what it saves")


def _saving(numbers: Numbers, generated: Generated) -> str:
    flops, without = (numbers.arrays[n].sum() for n in ("step.flops", "step.flops_without"))
    seconds, longer = sum(generated.with_cache), sum(generated.without_cache)
    return (
        f"In all, the cache saved {rounded(100 * (1 - flops / without), 'f0')} % of the "
        f"operations, and the steps took {1000 * seconds:.1f} ms instead of {1000 * longer:.1f}."
    )
