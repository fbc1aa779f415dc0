"""The unembedding: the whole distribution of the next token, and what sampling makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.html import bar, formula, panel, source, table, token
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.generation import (
    GenerationOptions,
    apply_temperature,
    next_probabilities,
    top_k_filter,
    top_p_filter,
)
from gpt2np.generation.logits_processors import min_p_filter
from gpt2np.model.ops import softmax

Array = NDArray[Any]

SHOWN = 20
SETTINGS = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 40, 1.0), (1.0, 0, 0.9), (0.8, 40, 0.95))
"""Temperature, top-k and top-p that people use."""
_MASSES = (0.5, 0.9, 0.99)
_SLIDERS = (  # name, label, lowest, highest, step, value that changes nothing
    ("temperature", "temperature", "0", "2", "0.05", "1"),
    ("top_k", "top-k", "0", "100", "1", "0"),
    ("top_p", "top-p", "0.01", "1", "0.01", "1"),
    ("min_p", "min-p", "0", "0.5", "0.01", "0"),
)


def sampling_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    logits = numbers.add("next.logits", run.arrays["logits"][run.focus.position], carry=True)
    order = np.argsort(-logits, kind="stable")
    _add_distribution(numbers, logits, order)
    position = run.focus.position
    says = (
        f"The last row of the residual stream, through the last layer norm, times the unembedding: "
        f"{len(logits):,} logits, one for each token of the vocabulary. The softmax over all of "
        f"them is the model’s distribution of what follows token {position}, "
        f"{token(run.bytes_of(run.ids[position]))}. Sampling first cuts it: what is discarded can "
        "never be drawn, and what is kept is scaled up to add up to 1."
    )
    body = [
        formula(
            "p = softmax(logits / temperature)\n"
            "top-k: the k highest   ·   top-p: the fewest likeliest that reach p   ·   "
            "min-p: those with p ≥ min-p · p_max"
        ),
        source(
            next_probabilities,
            apply_temperature,
            top_k_filter,
            top_p_filter,
            min_p_filter,
            softmax,
        ),
        _masses(numbers),
        _controls(),
        _bars(run, numbers, order[:SHOWN]),
        _settings(run, numbers, logits),
    ]
    return panel("sampling", "From vector to next token", says, "\n".join(body))


def _add_distribution(numbers: Numbers, logits: Array, order: Array) -> None:
    """logits (V), and their ids in `order`, the likeliest first."""
    options = GenerationOptions(temperature=1.0, top_k=0, top_p=1.0)
    probabilities = numbers.add("next.probability", next_probabilities(logits, options))
    numbers.add("next.rest", np.asarray(probabilities[order[SHOWN:]].sum()))
    needed = np.searchsorted(np.cumsum(probabilities[order]), _MASSES) + 1
    numbers.add("next.tokens_for_mass", np.minimum(needed, len(logits)))


def _masses(numbers: Numbers) -> str:
    parts = [
        f"{numbers.show('next.tokens_for_mass', at, as_='n')} for {mass:.0%}"
        for at, mass in enumerate(_MASSES)
    ]
    return (
        f'<p class="facts">How many of the likeliest tokens it takes for a share of the '
        f"probability: {', '.join(parts)}.</p>"
    )


def _controls() -> str:
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


def _bars(run: Run, numbers: Numbers, shown: Array) -> str:
    rows, most = [], float(numbers.arrays["next.probability"].max())
    for place, number in enumerate(map(int, shown)):
        probability = float(numbers.arrays["next.probability"][number])
        data = f' data-id="{number}" data-probability="{probability!r}"'
        rows.append(
            (
                f"{place + 1}",
                token(run.bytes_of(number)),
                str(number),
                numbers.show("next.logits", number),
                numbers.show("next.probability", number, as_="p"),
                f'<span class="sampled needs-script" data-id="{number}"></span>'
                f"{bar(probability, data, most)}",
            )
        )
    others = len(numbers.arrays["next.logits"]) - len(shown)
    if others > 0:
        rest = numbers.show("next.rest", as_="p")
        sampled = '<span class="sampled needs-script" data-id="rest"></span>'
        rows.append(("", f"all {others:,} others", "", "", rest, sampled))
    sampled = '<span class="needs-script">when sampled</span>'
    head = ("", "token", "id", "logit", "probability", sampled)
    caption = f"The {len(shown)} likeliest next tokens; probabilities are of the whole vocabulary"
    return table(head, rows, caption, kind="bars next")


def _settings(run: Run, numbers: Numbers, logits: Array) -> str:
    """What usual settings keep, for readers on paper or without the script."""
    for at, (temperature, top_k, top_p) in enumerate(SETTINGS):
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        whole = next_probabilities(logits, GenerationOptions(temperature=temperature, top_k=0))
        sampled = numbers.add(f"setting{at}.probability", next_probabilities(logits, options))
        kept = sampled > 0
        masses = np.count_nonzero(kept), whole[kept].sum(), whole[~kept].sum()
        numbers.add(f"setting{at}.kept", np.array(masses))
    head = ("temperature", "top-k", "top-p", "tokens kept", "mass kept", "discarded", "likeliest")
    rows = [_setting(run, numbers, at) for at in range(len(SETTINGS))]
    return table(head, rows, "What usual settings keep of it", row_heads=False)


def _setting(run: Run, numbers: Numbers, at: int) -> tuple[str, ...]:
    temperature, top_k, top_p = SETTINGS[at]
    best = int(numbers.arrays[f"setting{at}.probability"].argmax())
    return (
        f"{temperature:g}",
        str(top_k or "–"),
        "–" if top_p == 1 else f"{top_p:g}",
        numbers.show(f"setting{at}.kept", 0, as_="n"),
        numbers.show(f"setting{at}.kept", 1, as_="p"),
        numbers.show(f"setting{at}.kept", 2, as_="p"),
        f"{token(run.bytes_of(best))} {numbers.show(f'setting{at}.probability', best, as_='p')}",
    )
