"""The logit lens: what the model would say after each block, were it the last."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.chart import Line, line_chart
from gpt2np.explain.html import formula, panel, source, table, token, token_text
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.interp.lens import logit_lens, top_k
from gpt2np.model.ops import softmax

Array = NDArray[Any]

TOP = 5

_NUMBERS = 1 << 25  # of logits at a time


def lens_arrays(run: Run) -> dict[str, Array]:
    """After the embedding and after each block: the likeliest tokens, and how the answer stands.

    lens.ids, lens.probability: (L+1, N, TOP). lens.answer: (L+1, N), the probability of the token
    that the whole model finds likeliest there; lens.rank: (L+1, N), its place, 1 the first.
    """
    answers = run.arrays["logits"].argmax(axis=1)[None, :, None]  # (1, N, 1)
    residuals = np.stack([run.residual(layer) for layer in range(run.config.n_layer + 1)])
    at_once = max(1, _NUMBERS // (len(run.ids) * run.config.vocab_size))  # layers
    ids, top, of_answer, rank = [], [], [], []
    for first in range(0, len(residuals), at_once):
        logits = logit_lens(run.model, residuals[first : first + at_once])  # (layers, N, V)
        own = np.take_along_axis(logits, answers, 2)
        rank.append(1 + np.count_nonzero(logits > own, axis=2))
        ids.append(top_k(logits, min(TOP, run.config.vocab_size)))
        probabilities = softmax(logits)
        top.append(np.take_along_axis(probabilities, ids[-1], 2))
        of_answer.append(np.take_along_axis(probabilities, answers, 2)[..., 0])
    return {
        "lens.ids": np.concatenate(ids).astype(np.int32),
        "lens.probability": np.concatenate(top),
        "lens.answer": np.concatenate(of_answer),
        "lens.rank": np.concatenate(rank).astype(np.int32),
    }


def lens_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    for name, array in lens_arrays(run).items():
        numbers.add(name, array, carry=True)
    position = run.focus.position
    answer = int(run.arrays["logits"][position].argmax())
    steps = ["start", *map(str, range(run.config.n_layer))]
    says = (
        "The last layer norm and the unembedding turn the residual stream into logits; here they "
        "are applied early, after each block, for every token. Read a row from left to right: that "
        "is one token of the prompt, and what the model would have said comes next, block by "
        "block. A framed cell already has the final answer; the stronger the blue, the surer."
    )
    line = Line("its probability", numbers.arrays["lens.answer"][:, position].tolist())
    body = [
        formula("logits after block l = ln_f(x_l) · W_U      probability = softmax(logits)"),
        source(logit_lens, softmax),
        _table(run, numbers, steps),
        '<div id="lens-cell" class="opened needs-script" aria-live="polite"></div>',
        f"<h3>Where the answer appears</h3><p>{_sentence(run, numbers, answer)}</p>",
        line_chart([line], steps, "The probability of the final answer, block by block"),
        _one_position(run, numbers, steps),
    ]
    return panel("lens", "The logit lens", says, "\n".join(body))


def settled_after(ranks: Array) -> int:
    """From which row of ranks (L+1,) on the answer is the first and stays it."""
    not_first = np.flatnonzero(ranks != 1)
    return min(int(not_first[-1]) + 1, len(ranks) - 1) if len(not_first) else 0


def _sentence(run: Run, numbers: Numbers, answer: int) -> str:
    settled = settled_after(numbers.arrays["lens.rank"][:, run.focus.position])
    after = f"after block {settled - 1}" if settled else "from the embedding on"
    position = run.focus.position
    return (
        f"After token {position}, {token(run.bytes_of(run.ids[position]))}, the model’s "
        f"likeliest next token is {token(run.bytes_of(answer))}. It takes the first place {after} "
        "and keeps it."
    )


def _table(run: Run, numbers: Numbers, steps: list[str]) -> str:
    rows = [
        [
            f"{n} {token(run.bytes_of(number))}",
            *(_cell(run, numbers, at, n) for at in range(len(steps))),
        ]
        for n, number in enumerate(run.ids)
    ]
    caption = (
        "The likeliest next token at each token of the prompt (rows), after each block; start is "
        "before them"
    )
    return (
        f'<div style="--steps: {len(steps)}">'
        f"{table(('token', *steps), rows, caption, kind='lens')}</div>"
    )


def _cell(run: Run, numbers: Numbers, at: int, n: int) -> str:
    best = token(run.bytes_of(int(numbers.arrays["lens.ids"][at, n, 0])))
    share = float(numbers.arrays["lens.probability"][at, n, 0])
    kind = "cell answer" if numbers.arrays["lens.rank"][at, n] == 1 else "cell"
    stop = 0 if at == n == 0 else -1  # of the tab key; the arrow keys go from there
    return (
        f'<button type="button" class="{kind}" style="--p:{share:.3f}" data-layer="{at}" '
        f'data-token="{n}" tabindex="{stop}">{best}'
        f"{numbers.show('lens.probability', at, n, 0, as_='f2')}</button>"
    )


def _one_position(run: Run, numbers: Numbers, steps: list[str]) -> str:
    n, rows = run.focus.position, []
    for at, step in enumerate(steps):
        best = [
            f"{token(run.bytes_of(int(numbers.arrays['lens.ids'][at, n, place])))} "
            f"{numbers.show('lens.probability', at, n, place, as_='p')}"
            for place in range(numbers.arrays["lens.ids"].shape[2])
        ]
        answer = numbers.show("lens.answer", at, n, as_="p")
        rows.append((step, answer, numbers.show("lens.rank", at, n, as_="n"), *best))
    places = [f"{place + 1}." for place in range(numbers.arrays["lens.ids"].shape[2])]
    name = token_text(run.bytes_of(run.ids[n]))
    head = ("after block", "the answer’s probability", "its place", *places)
    return table(head, rows, f"The likeliest tokens after token {n}, {name}")
