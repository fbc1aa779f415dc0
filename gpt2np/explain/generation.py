"""Section on generation: greedy continuation token by token, with and without a KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2np.benchmark.counts import decode_flops, prefill_flops
from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.explain.figures import Line, line_chart
from gpt2np.explain.markup import Numbers, computed_by, format_number, formula, section, table
from gpt2np.explain.run import Run
from gpt2np.interp.lens import top_k
from gpt2np.kernels.array import Array
from gpt2np.model import KVCache, last_token_indices
from gpt2np.model.model import GPT2
from gpt2np.model.ops import softmax
from gpt2np.runtime.kv_cache import cache_nbytes

_N_ALTERNATIVES = 5
_EFFORT = Effort(runs=2, seconds=0.0)


@dataclass(frozen=True)
class Step:
    """One step of a greedy continuation.

    Attributes:
        id: the most likely token, which is chosen.
        logits: (V), computed with the cache.
        difference: the largest difference to the logits computed without a cache.
        context: tokens that the logits depend on.
        seconds, seconds_without: duration with the cache and without.
    """

    id: int
    logits: Array
    difference: float
    context: int
    seconds: float
    seconds_without: float


def generate(run: Run, max_steps: int) -> list[Step]:
    """Continue the window greedily, each step with and without a cache.

    Stops early at the end of the model's context or at an end-of-text token.
    """
    ids, cache, steps = list(run.ids), run.model.new_cache(), list[Step]()
    for _ in range(min(max_steps, run.config.n_positions - len(ids) + 1)):
        steps.append(_time_step(run.model, ids, cache))
        ids.append(steps[-1].id)
        if ids[-1] in run.lm.eos_token_ids:
            break
    return steps


def _time_step(model: GPT2, ids: list[int], cache: KVCache) -> Step:
    cached = cache.length

    def with_cache() -> Array:
        cache.truncate(cached)
        new = [ids[cached:]]
        return model.forward(new, [cache], logits_indices=last_token_indices(new))

    def without_cache() -> Array:
        return model.forward([ids], logits_indices=last_token_indices([ids]))

    seconds, seconds_without = (
        repeat(work, _EFFORT).fastest for work in (with_cache, without_cache)
    )
    logits: Array = with_cache()[0]
    difference = float(np.abs(logits - without_cache()[0]).max())
    return Step(int(logits.argmax()), logits, difference, len(ids), seconds, seconds_without)


def generation_section(run: Run, numbers: Numbers, steps: list[Step]) -> str:
    """Return the section's markup."""
    _add_numbers(run, numbers, steps)
    continuation = "<wbr>".join(run.token(step.id) for step in steps)
    summary = (
        "A model gives one token at a time: the most likely token is appended to the text, and the "
        "model runs again. The keys and values of earlier tokens never change, so they are kept in "
        "a cache, and only the new token has to go through the blocks. Below, every step is also "
        "computed without the cache, from the start, and must give the same result."
    )
    lines = [
        Line("with cache", [1000 * step.seconds for step in steps]),
        Line("without cache", [1000 * step.seconds_without for step in steps]),
    ]
    labels = [str(i + 1) for i in range(len(steps))]
    body = [
        formula("cache bytes = 2 · layers · tokens · channels · 4"),
        computed_by(GPT2.forward, KVCache, cache_nbytes, prefill_flops, decode_flops),
        f'<p class="continuation">{continuation}</p>',
        _alternatives_table(run, numbers, len(steps)),
        _cost_table(numbers, steps),
        line_chart(lines, labels, "Milliseconds of each step") if len(steps) > 1 else "",
        f'<p class="hint">Times are the faster of two runs, measured while this page was made. '
        f"{_savings_sentence(numbers, steps)}</p>",
    ]
    return section("generation", "Token after token", summary, "\n".join(body))


def _add_numbers(run: Run, numbers: Numbers, steps: list[Step]) -> None:
    config, contexts = run.config, [step.context for step in steps]
    logits = np.array([step.logits for step in steps])
    best = top_k(logits, min(_N_ALTERNATIVES, config.vocab_size))
    probabilities = softmax(logits.astype(np.float64))
    without = [prefill_flops(config, n) for n in contexts]
    with_cache = [without[0], *(decode_flops(config, n) for n in contexts[1:])]
    numbers.add("step.ids", best)
    numbers.add("step.probability", np.take_along_axis(probabilities, best, 1))
    numbers.add("step.difference", np.array([step.difference for step in steps]))
    numbers.add("step.bytes", np.array([cache_nbytes(config, n) for n in contexts]))
    numbers.add("step.flops", np.array(with_cache))
    numbers.add("step.flops_without", np.array(without))


def _alternatives_table(run: Run, numbers: Numbers, steps: int) -> str:
    best = numbers.arrays["step.ids"]
    rows = [
        (
            str(step + 1),
            *(
                f"{run.token(int(token_id))} "
                f"{numbers.show('step.probability', step, place, style='p')}"
                for place, token_id in enumerate(best[step])
            ),
        )
        for step in range(steps)
    ]
    head = ("step", "taken", *("instead" for _ in range(best.shape[1] - 1)))
    return table(head, rows, "Each step’s most likely tokens, with their probabilities")


def _cost_table(numbers: Numbers, steps: list[Step]) -> str:
    rows = [
        (
            str(i + 1),
            str(step.context),
            numbers.show("step.bytes", i, style="n"),
            numbers.show("step.flops", i, style="n"),
            numbers.show("step.flops_without", i, style="n"),
            f"{1000 * step.seconds:.2f}",
            f"{1000 * step.seconds_without:.2f}",
            numbers.show("step.difference", i, style="2g"),
        )
        for i, step in enumerate(steps)
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


def _savings_sentence(numbers: Numbers, steps: list[Step]) -> str:
    flops, without = (numbers.arrays[name].sum() for name in ("step.flops", "step.flops_without"))
    seconds = sum(step.seconds for step in steps)
    seconds_without = sum(step.seconds_without for step in steps)
    return (
        f"In all, the cache saved {format_number(100 * (1 - flops / without), 'f0')} % of the "
        f"operations, and the steps took {1000 * seconds:.1f} ms instead of "
        f"{1000 * seconds_without:.1f}."
    )
