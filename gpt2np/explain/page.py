"""One HTML file for one prompt: every panel, its style, its script, and the numbers themselves."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from gpt2np import __version__
from gpt2np.errors import InvalidArgumentError
from gpt2np.explain.attention_panel import attention_panel
from gpt2np.explain.audit_panel import audit_panel, time_panel
from gpt2np.explain.embedding_panel import embedding_panel
from gpt2np.explain.generation_panel import generate, generation_panel
from gpt2np.explain.html import formula, panel, source, text, token, token_text
from gpt2np.explain.lens_panel import lens_panel
from gpt2np.explain.mlp_panel import mlp_panel
from gpt2np.explain.norm_panel import norm_panel
from gpt2np.explain.numbers import Numbers, script_json
from gpt2np.explain.patterns_panel import patterns_panel
from gpt2np.explain.precision_panel import exact_arrays, precision_panel
from gpt2np.explain.residual_panel import residual_panel
from gpt2np.explain.run import Run, is_whole, run_prompt
from gpt2np.explain.sampling_panel import sampling_panel
from gpt2np.explain.text_panel import shown_text, text_panel
from gpt2np.generation import GenerationOptions, next_probabilities
from gpt2np.language_model import LanguageModel
from gpt2np.model.model import GPT2

Tell = Callable[[str], None]

STEPS = 8
PARTS = 16
"""How many times `explain` tells what it does."""


@dataclass(frozen=True)
class Page:
    """A page, and what is on it.

    Attributes:
        html: the file's content.
        numbers: the arrays that its numbers come from.
        run: the prompt's way through the model.
    """

    html: str
    numbers: Numbers
    run: Run


def explain(
    lm: LanguageModel,
    prompt: str,
    *,
    window: slice | None = None,
    layer: int | None = None,
    head: int | None = None,
    position: int | None = None,
    steps: int = STEPS,
    float64: bool = True,
    tell: Tell = lambda part: None,
) -> Page:
    """A page about what the model does with a prompt: see `gpt2np explain --help`.

    Args:
        lm: the model, in float32.
        prompt: the text; at most `gpt2np.explain.run.MOST_TOKENS` tokens, or a window of it.
        window: which of its tokens the page is about.
        layer, head, position: what is opened; chosen by what is there to see, where not given.
        steps: how many tokens to continue it by, at least 1.
        float64: whether to compute it once more in float64, which takes twice the memory.
        tell: called with the name of each part before it is worked on.

    Raises:
        ContextLengthError: too many tokens for a page or for the model.
        InvalidArgumentError: a window, layer, head or position that there is not; no steps; another
            dtype.
        CheckpointError: the logits are infinite or not numbers.
    """
    if lm.model.dtype != np.float32:
        raise InvalidArgumentError("the page shows float32; load the model with that dtype")
    if not is_whole(steps) or steps < 1:
        raise InvalidArgumentError(f"steps is {steps}; it must be a whole number, at least 1")
    tell("forward pass")
    run = run_prompt(lm, prompt, window=window, layer=layer, head=head, position=position)
    numbers = Numbers()
    panels = "\n".join(_panels(run, numbers, steps, float64, tell))
    tell("page")
    return Page(_filled(run, numbers, panels), numbers, run)


def _panels(run: Run, numbers: Numbers, steps: int, float64: bool, tell: Tell) -> list[str]:
    """The panels in the order of the data's way."""
    works: list[tuple[str, Callable[[], str]]] = [
        ("text", lambda: text_panel(run)),
        ("embedding", lambda: embedding_panel(run, numbers)),
        ("block", lambda: _block_panel(run)),
        ("layer norm", lambda: norm_panel(run, numbers)),
        ("attention", lambda: attention_panel(run, numbers)),
        ("patterns", lambda: patterns_panel(run, numbers)),
        ("MLP", lambda: mlp_panel(run, numbers)),
        ("residual stream", lambda: residual_panel(run, numbers)),
        ("logit lens", lambda: lens_panel(run, numbers)),
        ("sampling", lambda: sampling_panel(run, numbers)),
        ("generation", lambda: generation_panel(run, numbers, generate(run, steps))),
        ("parameters", lambda: audit_panel(run, numbers)),
        ("time", lambda: time_panel(run, numbers)),
        (
            "float64",
            lambda: precision_panel(run, numbers, exact_arrays(run) if float64 else None),
        ),
    ]
    made = []
    for name, work in works:
        tell(name)
        made.append(work())
    return made


def _block_panel(run: Run) -> str:
    layers, layer = run.config.n_layer, run.focus.layer
    says = (
        f"The vectors go through {layers} blocks, one after another. Each block reads them twice "
        "and adds twice: attention lets tokens look at those before them, and the MLP works on "
        f"each token by itself. This is block {layer} of 0 to {layers - 1}, opened."
    )
    body = formula("x ← x + attention(ln_1(x))      x ← x + mlp(ln_2(x))") + source(GPT2._block)
    return panel("block", f"One block, opened: block {layer}", says, body)


_CONTENTS = (
    ("text", "Text to ids", 2),
    ("embedding", "Ids to vectors", 2),
    ("block", "One block, opened", 2),
    ("norm", "Layer norm", 3),
    ("attention", "One head’s attention", 3),
    ("patterns", "All patterns", 3),
    ("mlp", "MLP neurons", 3),
    ("residual", "Residual stream", 3),
    ("lens", "The logit lens", 2),
    ("sampling", "Next token", 2),
    ("generation", "Token after token", 2),
    ("audit", "Every number", 2),
    ("time", "Where the time went", 2),
    ("precision", "Float honesty", 2),
)


def _filled(run: Run, numbers: Numbers, panels: str) -> str:
    script, now = _package_file("page.js"), datetime.now().astimezone()
    digest = hashlib.sha256(script.encode()).digest()
    contents = "".join(
        f'<li class="level{level}"><a href="#{name}">{title}</a></li>'
        for name, title, level in _CONTENTS
    )
    return Template(_package_file("page.html")).substitute(
        title=text(f"What happens to “{_short(run, 40)}” · gpt2np"),
        short_prompt=text(_short(run, 60)),
        lead=_lead(run, numbers),
        facts=_facts(run),
        contents=contents,
        panels=panels,
        data=script_json(_script_data(run, numbers)),
        script=script,
        script_hash=base64.b64encode(digest).decode("ascii"),
        style=_package_file("page.css"),
        version=text(__version__),
        date=f"{now.day} {now:%B %Y}",
    )


def _package_file(name: str) -> str:
    return files("gpt2np.explain").joinpath(name).read_text(encoding="utf-8")


def _short(run: Run, most: int) -> str:
    """The prompt on one line, or its beginning; where nothing of it can be seen, its tokens."""
    line = "".join(c if c.isprintable() else " " for c in shown_text(run))
    line = " ".join(line.split())
    line = line or "".join(token_text(run.bytes_of(number)) for number in run.ids)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _lead(run: Run, numbers: Numbers) -> str:
    options = GenerationOptions(temperature=1.0, top_k=0)
    probabilities = numbers.add(
        "last.probability", next_probabilities(run.arrays["logits"][-1], options)
    )
    best = int(probabilities.argmax())
    goes = "1 token goes" if len(run.ids) == 1 else f"{len(run.ids)} tokens go"
    return (
        f"{goes} in, and out comes a probability for each of {len(probabilities):,} tokens to be "
        f"the next. Here the likeliest is {token(run.bytes_of(best))}, with "
        f"{numbers.show('last.probability', best, as_='p')}. Below is all that happens on the way, "
        "in its order."
    )


def _facts(run: Run) -> str:
    config, weights = run.config, run.model.weights
    facts = {
        "model": _model_name(run),
        "parameters": f"{weights.parameters:,}",
        "blocks × heads": f"{config.n_layer} × {config.n_head}",
        "channels": f"{config.n_embd}, of each head {config.n_embd // config.n_head}",
        "MLP neurons": f"{config.n_inner:,} a block",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "context": f"{config.n_positions:,} tokens",
        "computed in": str(run.model.dtype),
    }
    return "".join(
        f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items()
    )


def _model_name(run: Run) -> str:
    """The model's name; of a folder the last part, as a page may go to others."""
    path = Path(run.lm.name)
    return path.name if path.is_absolute() else run.lm.name


def _script_data(run: Run, numbers: Numbers) -> dict[str, Any]:
    focus = run.focus
    shown = {int(number) for number in numbers.arrays["lens.ids"].reshape(-1)}
    return {
        "tokens": [token_text(run.bytes_of(number)) for number in run.ids],
        "ids": run.ids,
        "texts": {str(number): token_text(run.bytes_of(number)) for number in sorted(shown)},
        "block": f"blocks.{focus.layer}.attn",
        "scale": run.model.attention_scale(focus.layer),
        "focus": {
            "layer": focus.layer,
            "head": focus.head,
            "position": focus.position,
            "key": focus.key,
        },
        "arrays": numbers.as_json(),
    }
