"""Page sections on the output: logit lens, next-token distribution, and greedy continuation.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2np.benchmark.counts import decode_flops, prefill_flops
from gpt2np.benchmark.timing import Effort, repeat
from gpt2np.explain.figures import Line, line_chart
from gpt2np.explain.markup import (
    Numbers,
    bar,
    computed_by,
    format_number,
    formula,
    section,
    table,
    token_text,
)
from gpt2np.explain.run import Run, token_cells
from gpt2np.generation import (
    GenerationOptions,
    apply_temperature,
    next_probabilities,
    top_k_filter,
    top_p_filter,
)
from gpt2np.generation.logits_processors import min_p_filter
from gpt2np.interp.lens import logit_lens, top_k
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache, last_token_indices
from gpt2np.model.ops import softmax
from gpt2np.runtime.kv_cache import cache_nbytes

SETTINGS = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 40, 1.0), (1.0, 0, 0.9), (0.8, 40, 0.95))
"""Common values of temperature, top-k and top-p."""

_N_LENS_TOKENS = 5
_MAX_LOGITS = 1 << 25  # maximum number of logits in memory for the logit lens
_N_BARS = 20
_N_ALTERNATIVES = 5
_EFFORT = Effort(runs=2, seconds=0.0)
_MASSES = (0.5, 0.9, 0.99)
_SLIDERS = (  # name, label, lowest, highest, step, neutral value
    ("temperature", "temperature", "0", "2", "0.05", "1"),
    ("top_k", "top-k", "0", "100", "1", "0"),
    ("top_p", "top-p", "0.01", "1", "0.01", "1"),
    ("min_p", "min-p", "0", "0.5", "0.01", "0"),
)


def lens_arrays(run: Run) -> dict[str, Array]:
    """Compute the logit lens after the embedding and after each block.

    The answer at a position is the token that the model's output makes most likely.

    Returns:
        lens.ids, lens.probability: ids and probabilities of the n most likely tokens, (L+1, N, n).
        lens.answer, lens.rank: probability and rank (from 1) of the answer, (L+1, N).
    """
    answers = run.arrays["logits"].argmax(axis=1)[None, :, None]  # (1, N, 1)
    residuals = np.stack([run.residual(layer) for layer in range(run.config.n_layer + 1)])
    chunk = max(1, _MAX_LOGITS // (len(run.ids) * run.config.vocab_size))  # layers
    ids, probability, answer, rank = [], [], [], []
    for first in range(0, len(residuals), chunk):
        logits = logit_lens(run.model, residuals[first : first + chunk])  # (layers, N, V)
        answer_logits = np.take_along_axis(logits, answers, 2)
        rank.append(1 + np.count_nonzero(logits > answer_logits, axis=2))
        ids.append(top_k(logits, min(_N_LENS_TOKENS, run.config.vocab_size)))
        probabilities = softmax(logits)
        probability.append(np.take_along_axis(probabilities, ids[-1], 2))
        answer.append(np.take_along_axis(probabilities, answers, 2)[..., 0])
    return {
        "lens.ids": np.concatenate(ids).astype(np.int32),
        "lens.probability": np.concatenate(probability),
        "lens.answer": np.concatenate(answer),
        "lens.rank": np.concatenate(rank).astype(np.int32),
    }


def lens_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on the logit lens."""
    for name, array in lens_arrays(run).items():
        numbers.add(name, array)
    labels = run.layer_labels
    summary = (
        "The last layer norm and the unembedding turn the residual stream into logits; here they "
        "are applied early, after each block. Here is the token that the page follows; the picture "
        "at the top shows every token’s guesses when you point at its line. A guess need not get "
        "better from block to block."
    )
    answer = numbers.arrays["lens.answer"][:, run.focus.position]
    title = "The probability of the final answer, block by block"
    body = [
        formula("logits after block l = ln_f(x_l) · W_U      probability = softmax(logits)"),
        computed_by(logit_lens, softmax),
        f"<p>{_answer_sentence(run, numbers)}</p>",
        line_chart([Line("its probability", answer.tolist())], labels, title),
        _lens_table_of_focus(run, numbers),
    ]
    return section("lens", "The logit lens", summary, "\n".join(body))


def settled_layer(ranks: Array) -> int:
    """Return the layer from which on a token's `ranks` (L+1,) in the logit lens stay 1, or L."""
    not_first = np.flatnonzero(ranks != 1)
    return min(int(not_first[-1]) + 1, len(ranks) - 1) if len(not_first) else 0


def _answer_sentence(run: Run, numbers: Numbers) -> str:
    position = run.focus.position
    answer = int(run.arrays["logits"][position].argmax())
    layer = settled_layer(numbers.arrays["lens.rank"][:, position])
    after = f"after block {layer - 1}" if layer else "from the embedding on"
    return (
        f"After token {position}, {run.token(run.ids[position])}, the model’s most likely next "
        f"token is {run.token(answer)}. It takes the first place {after} and keeps it."
    )


def _lens_table_of_focus(run: Run, numbers: Numbers) -> str:
    position, rows = run.focus.position, []
    ids = numbers.arrays["lens.ids"][:, position]
    for layer, label in enumerate(run.layer_labels):
        cells = token_cells(run, numbers, ids[layer], "lens.probability", layer, position)
        answer = numbers.show("lens.answer", layer, position, style="p")
        rows.append((label, answer, numbers.show("lens.rank", layer, position, style="n"), *cells))
    places = [f"{place + 1}." for place in range(ids.shape[1])]
    name = token_text(run.token_bytes(run.ids[position]))
    head = ("after block", "the answer’s probability", "its place", *places)
    return table(head, rows, f"The most likely tokens after token {position}, {name}")


def sampling_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on sampling."""
    logits = numbers.add("next.logits", run.arrays["logits"][run.focus.position], carry=True)
    order = np.argsort(-logits, kind="stable")
    _add_distribution(numbers, logits, order)
    position = run.focus.position
    summary = (
        f"The last row of the residual stream, through the last layer norm, times the unembedding: "
        f"{len(logits):,} logits, one for each token of the vocabulary. The softmax over all of "
        f"them is the model’s distribution of what follows token {position}, "
        f"{run.token(run.ids[position])}. Sampling first cuts the distribution: a discarded token "
        "can never be drawn, and the kept probabilities are scaled up to add up to 1."
    )
    body = [
        formula(
            "p = softmax(logits / temperature)\n"
            "top-k: the k highest   ·   top-p: the smallest set that reaches p   ·   "
            "min-p: those with p ≥ min-p · p_max"
        ),
        computed_by(
            next_probabilities, apply_temperature, top_k_filter, top_p_filter, min_p_filter, softmax
        ),
        _mass_sentence(numbers),
        _slider_form(),
        _bar_table(run, numbers, order[:_N_BARS]),
        _settings_table(run, numbers, logits),
    ]
    return section("sampling", "From vector to next token", summary, "\n".join(body))


def _add_distribution(numbers: Numbers, logits: Array, order: Array) -> None:
    """Add the distribution of `logits` to `numbers`; `order` lists ids, most likely first."""
    options = GenerationOptions(temperature=1.0, top_k=0, top_p=1.0)
    probabilities = numbers.add("next.probability", next_probabilities(logits, options))
    numbers.add("next.rest", np.asarray(probabilities[order[_N_BARS:]].sum()))
    needed = np.searchsorted(np.cumsum(probabilities[order]), _MASSES) + 1
    numbers.add("next.tokens_for_mass", np.minimum(needed, len(logits)))


def _mass_sentence(numbers: Numbers) -> str:
    parts = [
        f"{numbers.show('next.tokens_for_mass', i, style='n')} for {mass:.0%}"
        for i, mass in enumerate(_MASSES)
    ]
    return (
        f'<p class="facts">How many of the most likely tokens it takes for a share of the '
        f"probability: {', '.join(parts)}.</p>"
    )


def _slider_form() -> str:
    sliders = "".join(
        f'<label for="slider-{name}">{label} <output id="value-{name}">{value}</output></label>'
        f'<input type="range" id="slider-{name}" name="{name}" min="{low}" max="{high}" '
        f'step="{step}" value="{value}">'
        for name, label, low, high, step, value in _SLIDERS
    )
    return (
        f'<form id="sliders" class="sliders needs-script">{sliders}'
        '<button type="reset">back to the model’s own distribution</button></form>'
        '<div class="needs-script"><div class="mass" id="mass" role="img">'
        '<span class="kept"></span><span class="lost" data-by="top_k"></span>'
        '<span class="lost" data-by="top_p"></span><span class="lost" data-by="min_p"></span></div>'
        '<p class="facts" id="mass-says" aria-live="polite"></p></div>'
    )


def _bar_table(run: Run, numbers: Numbers, ids: Array) -> str:
    rows, longest = [], float(numbers.arrays["next.probability"].max())
    for place, token_id in enumerate(map(int, ids)):
        probability = float(numbers.arrays["next.probability"][token_id])
        attributes = f' data-id="{token_id}" data-probability="{probability!r}"'
        bars = f'<span class="sampled needs-script" data-id="{token_id}"></span>'
        bars += bar(probability, attributes, longest)
        logit = numbers.show("next.logits", token_id)
        share = numbers.show("next.probability", token_id, style="p")
        rows.append((f"{place + 1}", run.token(token_id), str(token_id), logit, share, bars))
    n_others = len(numbers.arrays["next.logits"]) - len(ids)
    if n_others > 0:
        rest = numbers.show("next.rest", style="p")
        sampled = '<span class="sampled needs-script" data-id="rest"></span>'
        rows.append(("", f"all {n_others:,} others", "", "", rest, sampled))
    sampled = '<span class="needs-script">when sampled</span>'
    head = ("", "token", "id", "logit", "probability", sampled)
    caption = f"The {len(ids)} most likely next tokens; probabilities are of the whole vocabulary"
    return table(head, rows, caption, kind="bars next")


def _settings_table(run: Run, numbers: Numbers, logits: Array) -> str:
    """Return a table of common sampling settings: the tokens and the probability they keep."""
    rows = []
    for i, (temperature, k, top_p) in enumerate(SETTINGS):
        options = GenerationOptions(temperature=temperature, top_k=k, top_p=top_p)
        whole = next_probabilities(logits, GenerationOptions(temperature=temperature, top_k=0))
        sampled = numbers.add(f"setting{i}.probability", next_probabilities(logits, options))
        kept = sampled > 0
        masses = np.count_nonzero(kept), whole[kept].sum(), whole[~kept].sum()
        numbers.add(f"setting{i}.kept", np.array(masses))
        cells = (numbers.show(f"setting{i}.kept", j, style=style) for j, style in enumerate("npp"))
        setting = (f"{temperature:g}", str(k or "–"), "–" if top_p == 1 else f"{top_p:g}")
        best = int(sampled.argmax())
        share = numbers.show(f"setting{i}.probability", best, style="p")
        rows.append((*setting, *cells, f"{run.token(best)} {share}"))
    head = ("temperature", "top-k", "top-p", "tokens kept", "mass kept", "discarded", "most likely")
    return table(head, rows, "What common settings keep", row_heads=False)


@dataclass(frozen=True)
class Step:
    """One step of a greedy continuation; `id` is the id of the new token."""

    id: int
    logits: Array  # computed with the KV cache, (V,)
    difference: float  # the largest difference from logits computed without a KV cache
    context: int  # number of tokens that the logits depend on
    seconds: float  # with the KV cache
    seconds_without: float  # without a KV cache


def greedy_steps(run: Run, max_steps: int) -> list[Step]:
    """Continue the tokens of the window greedily; compute each step with and without a KV cache.

    Stops after `max_steps` steps, after an end-of-text token, or when the context is full.
    """
    ids, cache, steps = list(run.ids), run.model.new_cache(), list[Step]()
    while len(steps) < max_steps and len(ids) <= run.config.n_positions:
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
    """Return the markup of the section on the greedy continuation."""
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
        (str(step + 1), *token_cells(run, numbers, best[step], "step.probability", step))
        for step in range(steps)
    ]
    head = ("step", "taken", *("instead" for _ in range(best.shape[1] - 1)))
    return table(head, rows, "Each step’s most likely tokens, with their probabilities")


def _cost_table(numbers: Numbers, steps: list[Step]) -> str:
    rows = []
    for i, step in enumerate(steps):
        names = ("step.bytes", "step.flops", "step.flops_without")
        counts = (numbers.show(name, i, style="n") for name in names)
        times = (f"{1000 * seconds:.2f}" for seconds in (step.seconds, step.seconds_without))
        difference = numbers.show("step.difference", i, style="2g")
        rows.append((str(i + 1), str(step.context), *counts, *times, difference))
    head = (
        *("step", "tokens seen", "cache, bytes", "operations with it", "without"),
        *("ms with it", "without", "largest difference of a logit"),
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
