"""Assembly of the page: one HTML file with all sections, style sheet, script and arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from gpt2np import __version__
from gpt2np.display import frame
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.explain.attention import attention_section
from gpt2np.explain.audit import precision_section, tensors_section, time_section
from gpt2np.explain.block import block_section, mlp_section, norm_section, residual_section
from gpt2np.explain.input import embedding_section, text_in_window, text_section
from gpt2np.explain.markup import Numbers, escape, token_text
from gpt2np.explain.output import generation_section, greedy_steps, lens_section, sampling_section
from gpt2np.explain.run import Run, run_prompt
from gpt2np.generation import GenerationOptions, next_probabilities
from gpt2np.interp.description import PARTS, describe_pass
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.view import content_hash, joined_modules, script_json, web_files

OnProgress = Callable[[str], None]

_CONTENTS = (  # id of the section, title, level
    ("text", "Text to ids", 2),
    ("embedding", "Ids to vectors", 2),
    ("block", "One block, opened", 2),
    ("norm", "Layer norm", 3),
    ("attention", "One head’s attention", 3),
    ("mlp", "MLP neurons", 3),
    ("residual", "Residual stream", 3),
    ("lens", "The logit lens", 2),
    ("sampling", "Next token", 2),
    ("generation", "Token after token", 2),
    ("audit", "Every number", 2),
    ("time", "Where the time went", 2),
    ("precision", "Float32 precision", 2),
)

_SEED = 0  # of the draw that the Machine shows

PROGRESS_STEPS = len(_CONTENTS) + 2  # the sections, the forward pass and the page
"""Number of times that `explain` calls `on_progress`."""


@dataclass(frozen=True, repr=False)
class Page:
    """HTML of a page, the displayed arrays, and the forward pass over the prompt."""

    html: str
    numbers: Numbers
    run: Run

    def __repr__(self) -> str:
        return f"<Page about {_short_prompt(self.run, 40)!r}: {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return frame(self.html)


def explain(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    window: slice | None = None,
    layer: int | None = None,
    head: int | None = None,
    position: int | None = None,
    steps: int = 8,
    float64: bool = True,
    on_progress: OnProgress = lambda part: None,
) -> Page:
    """Create a page that shows how the model processes a prompt (see `gpt2np explain --help`).

    The prompt is a text or token ids. The model must be in float32. `window` selects tokens of the
    prompt (default: all); at most `gpt2np.explain.run.MAX_TOKENS` tokens are allowed. `layer`,
    `head` and `position` (in the window) select the details to show; `run_prompt` explains the
    defaults. `steps` is the maximum number of tokens to generate. `float64` adds a comparison with
    a float64 copy of the model. `on_progress` receives the name of each part of the page before the
    part is computed.

    Raises:
        ContextLengthError: the prompt has too many tokens for a page or for the model.
        InvalidArgumentError: the window, layer, head or position is out of range, `steps` is not
            positive, or the model is not in float32.
        CheckpointError: some logits are infinite or NaN.
    """
    check_argument(isinstance(lm, LanguageModel), "lm", lm, "a LanguageModel")
    if lm.model.dtype != np.float32:
        raise InvalidArgumentError("the page needs a float32 model; load the model with that dtype")
    check_argument(is_integer(steps) and steps >= 1, "steps", steps, "an integer of at least 1")
    on_progress("forward pass")
    run = run_prompt(lm, prompt, window=window, layer=layer, head=head, position=position)
    numbers = Numbers()
    sections = "\n".join(_sections(run, numbers, steps, float64, on_progress))
    on_progress("page")
    return Page(_fill_template(run, numbers, sections), numbers, run)


def _sections(
    run: Run, numbers: Numbers, steps: int, float64: bool, on_progress: OnProgress
) -> list[str]:
    """Return the markup of all sections, in the order of the page."""
    builders: list[tuple[str, Callable[[], str]]] = [
        ("text", lambda: text_section(run)),
        ("embedding", lambda: embedding_section(run, numbers)),
        ("block", lambda: block_section(run)),
        ("layer norm", lambda: norm_section(run, numbers)),
        ("attention", lambda: attention_section(run, numbers)),
        ("MLP", lambda: mlp_section(run, numbers)),
        ("residual stream", lambda: residual_section(run, numbers)),
        ("logit lens", lambda: lens_section(run, numbers)),
        ("sampling", lambda: sampling_section(run, numbers)),
        ("generation", lambda: generation_section(run, numbers, greedy_steps(run, steps))),
        ("parameters", lambda: tensors_section(run, numbers)),
        ("time", lambda: time_section(run, numbers)),
        ("float64", lambda: precision_section(run, numbers, float64)),
    ]
    sections = []
    for name, build in builders:
        on_progress(name)
        sections.append(build())
    return sections


def _fill_template(run: Run, numbers: Numbers, sections: str) -> str:
    now = datetime.now().astimezone()
    contents = "".join(
        f'<li class="level{level}"><a href="#{name}">{title}</a></li>'
        for name, title, level in _CONTENTS
    )
    return Template(_package_file("page.html")).substitute(
        title=escape(f"What happens to “{_short_prompt(run, 40)}” · gpt2np"),
        short_prompt=escape(_short_prompt(run, 60)),
        lead=_lead(run, numbers),
        facts=_facts(run),
        contents=contents,
        sections=sections,
        data=script_json(_script_data(run, numbers)),
        script=script(),
        script_hash=content_hash(script()),
        style=style(),
        version=escape(__version__),
        date=f"{now.day} {now:%B %Y}",
    )


def style() -> str:
    """Return the content of the page's style element."""
    sheets = web_files()
    machine = (sheets["colors.css"] + sheets["machine.css"]).decode()
    return "\n" + machine + _package_file("page.css") + "\n"


def script() -> str:
    """Return the content of the page's script element."""
    return joined_modules() + _package_file("page.js")


def _package_file(name: str) -> str:
    return files("gpt2np.explain").joinpath(name).read_text(encoding="utf-8")


def _short_prompt(run: Run, max_length: int) -> str:
    """Shorten the prompt to one line; for a blank prompt, show the tokens with visible symbols."""
    line = "".join(c if c.isprintable() else " " for c in text_in_window(run))
    line = " ".join(line.split())
    line = line or "".join(token_text(run.token_bytes(token_id)) for token_id in run.ids)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def _lead(run: Run, numbers: Numbers) -> str:
    options = GenerationOptions(temperature=1.0, top_k=0)
    probabilities = numbers.add(
        "last.probability", next_probabilities(run.arrays["logits"][-1], options)
    )
    best = int(probabilities.argmax())
    tokens = "1 token goes" if len(run.ids) == 1 else f"{len(run.ids)} tokens go"
    return (
        f"{tokens} in, and out comes a probability for each of {len(probabilities):,} tokens to be "
        f"the next. Here the most likely is {run.token(best)}, with "
        f"{numbers.show('last.probability', best, style='p')}. Below is everything that happens on "
        "the way, in order."
    )


def _facts(run: Run) -> str:
    path = Path(run.lm.name)
    facts = {
        "model": path.name if path.is_absolute() else run.lm.name,  # other users may read the page
        **run.model.facts,
    }
    return "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
    )


def _script_data(run: Run, numbers: Numbers) -> dict[str, Any]:
    return {
        "tokens": [token_text(run.token_bytes(token_id)) for token_id in run.ids],
        "ids": run.ids,
        "block": f"blocks.{run.focus.layer}.attn",
        "scale": run.config.attention_scale(run.focus.layer),
        "focus": asdict(run.focus),
        "arrays": numbers.as_json(),
        "pass": describe_pass(
            run.lm,
            run.arrays,
            include=(*PARTS, "guesses"),
            n_lines=len(run.ids),
            seed=_SEED,
        ),
    }
